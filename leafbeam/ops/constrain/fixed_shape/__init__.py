"""The constrained step in arrays of fixed shapes, written once and run by `fixed_shape.jax` and `fixed_shape.torch`."""
