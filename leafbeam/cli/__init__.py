"""The command line: `app` with its commands, which import what they need after their paths and options are checked."""

from leafbeam.cli.app import app

__all__ = ["app"]
