"""leafbeam inside Hugging Face transformers and Ray, and batch jobs over tables of users."""
