"""The command line: one file for each group of commands, each of them thin."""

from leafbeam.cli.app import app, main

__all__ = ["app", "main"]
