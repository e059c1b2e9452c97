"""Shared by all tests: hypothesis without deadlines (the machines are shared and noisy) and the same examples every time."""

from hypothesis import settings

settings.register_profile("shared-machine", deadline=None, derandomize=True)
settings.load_profile("shared-machine")
