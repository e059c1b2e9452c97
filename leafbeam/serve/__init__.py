"""The engine over HTTP."""

from leafbeam.serve.app import create_app
from leafbeam.serve.metrics import Metrics
from leafbeam.serve.server import Server, serve

__all__ = ["Metrics", "Server", "create_app", "serve"]
