"""The engine over HTTP."""

from pleach.serve.app import create_app
from pleach.serve.metrics import Metrics
from pleach.serve.server import Server, serve

__all__ = ["Metrics", "Server", "create_app", "serve"]
