"""Figures that the STATIC paper reports (Su et al., 2026).

Its figures are overheads of one decoding step over unconstrained beam search, in milliseconds, mean ± standard deviation of 100
trials, on a Google TPU v6e under JAX with its own 3-billion-parameter model; B = 2, M = 70 beams, L = 8.
"""

from __future__ import annotations

__all__ = ["BYTES_PER_MILLION", "HARDWARE", "SHARE_OF_INFERENCE", "TABLE_4A", "TABLE_4B", "USED_SHARE", "Overheads"]

HARDWARE = "TPU v6e, JAX (Su et al., 2026)"

Overheads = dict[str, tuple[float, float]]  # method -> (mean, standard deviation), milliseconds


def _row(
    static: tuple[float, float],
    hash_bitmap: tuple[float, float],
    ppv_approximate: tuple[float, float],
    ppv_exact: tuple[float, float],
    cpu_trie: tuple[float, float] | None,
) -> Overheads:
    row = {"static": static, "hash_bitmap": hash_bitmap, "ppv_approximate": ppv_approximate, "ppv_exact": ppv_exact}
    return row if cpu_trie is None else {**row, "cpu_trie": cpu_trie}  # None: out of memory in the paper


# Table 4a: by |C| at |V| = 2,048. Figure 2 is drawn from it; its row of 2 x 10^7 is Table 1.
TABLE_4A: dict[int, Overheads] = {
    100_000: _row((0.023, 0.008), (12.335, 0.020), (0.588, 0.008), (6.375, 0.268), (27.070, 0.416)),
    1_000_000: _row((0.030, 0.008), (12.339, 0.016), (0.846, 0.008), (15.368, 0.338), (27.579, 0.353)),
    10_000_000: _row((0.034, 0.006), (12.341, 0.026), (1.486, 0.020), (31.765, 2.150), (28.060, 0.396)),
    20_000_000: _row((0.033, 0.008), (12.343, 0.020), (1.564, 0.033), (34.116, 2.118), (31.336, 0.479)),
    100_000_000: _row((0.039, 0.010), (12.331, 0.013), (1.713, 0.038), (38.691, 2.469), None),
}

# Table 4b: by |V| at |C| = 10^7. Figure 3 is drawn from it.
TABLE_4B: dict[int, Overheads] = {
    256: _row((0.040, 0.008), (1.554, 0.008), (1.584, 0.035), (6.004, 0.228), (27.359, 0.365)),
    512: _row((0.041, 0.008), (3.094, 0.008), (1.543, 0.035), (10.586, 0.655), (27.853, 0.294)),
    1024: _row((0.038, 0.008), (6.180, 0.011), (1.509, 0.036), (18.360, 1.313), (29.239, 0.491)),
    2048: _row((0.034, 0.006), (12.341, 0.026), (1.486, 0.020), (31.765, 2.150), (31.176, 0.446)),
    4096: _row((0.034, 0.008), (24.620, 0.033), (1.620, 0.025), (57.066, 3.540), (29.810, 0.426)),
    8192: _row((0.041, 0.008), (49.191, 0.090), (1.668, 0.024), (107.015, 9.269), (29.383, 0.741)),
    16384: _row((0.044, 0.008), (98.273, 0.025), (1.824, 0.031), (287.181, 4.321), (30.885, 0.276)),
    32768: _row((0.041, 0.006), (196.474, 0.038), (2.093, 0.029), (578.738, 14.596), (31.676, 0.399)),
}

# Table 1, last column: the overhead as a share of one step of the paper's model, percent.
SHARE_OF_INFERENCE = {"ppv_exact": 260.0, "cpu_trie": 239.0, "hash_bitmap": 94.0, "ppv_approximate": 11.9, "static": 0.25}

# Appendix B.3's rule of thumb, and how much of U_max the paper says is used at most in practice (B.2).
BYTES_PER_MILLION, USED_SHARE = 90_000_000, 0.75
