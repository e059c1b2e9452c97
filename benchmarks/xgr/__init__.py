"""xGR, measured again: its figures."""
