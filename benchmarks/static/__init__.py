"""STATIC, measured again: its tables and figures."""
