"""Benchmarks of the engine and the server under load, and of their memory."""
