"""Attention of many beams over one shared prompt and over their own codes: `reference` in plain torch, `triton` for a GPU."""
