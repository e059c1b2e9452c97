"""leafbeam inside Hugging Face transformers (`transformers`) and Ray (`ray_serve`, `ray_batch`), and batch jobs (`batch`)."""
