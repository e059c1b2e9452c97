"""The kernels: the constrained step, the model's head for legal codes, attention over a shared prompt; one module a backend."""
