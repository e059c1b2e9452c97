"""Every number of the README and of docs/results, written from named rows of benchmarks/results: `make figures`."""
