"""Captured decoding: a whole search as one CUDA graph, for each size of batch and prompt (`graph.Graphs`)."""
