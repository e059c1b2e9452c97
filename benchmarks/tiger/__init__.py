"""TIGER, measured again: its Table 1."""
