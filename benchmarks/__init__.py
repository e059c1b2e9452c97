"""Measurements of leafbeam beside its named peers: `python -m benchmarks NAME`, one JSON row a run in results/."""
