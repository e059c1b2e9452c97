"""Products of a few rows with a large matrix: `linear`, in one module a backend (`cpu`, and `reference`, the truth)."""
