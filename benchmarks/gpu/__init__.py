"""Every Triton kernel on a GPU: parity first, then speed."""
