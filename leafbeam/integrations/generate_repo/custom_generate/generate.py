"""What transformers loads for `model.generate(custom_generate=DIRECTORY, trust_remote_code=True)`."""

from leafbeam.integrations.custom_generate import generate

__all__ = ["generate"]
