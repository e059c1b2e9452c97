"""The engine over HTTP."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports a name when it is first used
    from leafbeam.serve.access import Access
    from leafbeam.serve.app import create_app
    from leafbeam.serve.config import ServerConfig
    from leafbeam.serve.exposure import ConnectionLimits, Exposure
    from leafbeam.serve.feed_config import FeedConfig
    from leafbeam.serve.keys import Key, KeyFile
    from leafbeam.serve.metrics import Metrics
    from leafbeam.serve.observation import Observation
    from leafbeam.serve.server import Server, serve
    from leafbeam.serve.traces import Traces

__all__ = [
    "Access",
    "ConnectionLimits",
    "Exposure",
    "FeedConfig",
    "Key",
    "KeyFile",
    "Metrics",
    "Observation",
    "Server",
    "ServerConfig",
    "Traces",
    "create_app",
    "serve",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
