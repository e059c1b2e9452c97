"""The STATIC paper's tables and figures, measured here: one file for each, one loop of trials for all."""
