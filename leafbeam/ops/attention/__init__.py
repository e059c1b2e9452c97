"""Attention of many beams over one prompt and their own few codes: `prefix_attention`, `suffix_attention`, `merge`.

`reference` is plain torch (and what the model runs on a CPU), `triton` the kernels of a GPU; `reorder` moves suffix slots when
beams find new parents, `ancestors` makes that unnecessary.
"""
