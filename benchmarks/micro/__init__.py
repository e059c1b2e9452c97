"""Benchmarks of one operation: the constrained step, the index, filters, heads, attention, automata."""
