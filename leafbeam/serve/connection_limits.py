"""ConnectionLimits: what one client of a server may send and hold open."""

import os
import resource
from dataclasses import dataclass, fields

from leafbeam.errors import ArgumentError

_RESERVED_DESCRIPTORS = 64  # of the process: index, catalog, log, listening socket, device


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """What one client may send and hold open.

    Args:
        max_header_bytes: Bytes of request line, headers and trailers; more get 431.
        max_headers: Number of headers; more get 431.
        max_pipelined: Requests sent before the answer to the first; more get 400.
        header_s: Seconds from the first byte of a connection or request to the end of its headers; then 408.
        idle_s: Seconds that a connection stays open between two requests.
        write_s: Seconds in which a client must read an answer.
        bulk_bytes_per_s: Bytes a second that are read from all clients together that send more than 8 KiB at once, a chunk
            counting 256 bytes more, so that floods of bodies leave time for answers.
        max_connections: Open connections. At this number, the one that has waited longest without a complete request is closed
            for a new one; if every one has a request running, the new one gets 503. By default the free file descriptors.
    """

    max_header_bytes: int = 32 << 10
    max_headers: int = 100
    max_pipelined: int = 16
    header_s: float = 10.0
    idle_s: float = 75.0  # longer than load balancers keep idle connections, so that the server never closes one first
    write_s: float = 10.0
    bulk_bytes_per_s: float = float(16 << 20)
    max_connections: int | None = None

    def __post_init__(self) -> None:
        least = {"max_header_bytes": 256, "max_headers": 1, "max_pipelined": 1, "max_connections": 1}
        for limit in fields(self):
            value, minimum = getattr(self, limit.name), least.get(limit.name, 0)
            if (value is not None and not value >= minimum) or value == 0:
                bound = f"at least {minimum}" if minimum else "above 0"
                raise ArgumentError(f"{limit.name} must be {bound}, not {value!r}")


def descriptor_limit() -> int:
    """Connections that this process can hold open: its descriptors without those that it needs itself, 16,384 at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    available = 1 << 20 if soft == resource.RLIM_INFINITY else soft
    used = len(os.listdir("/dev/fd"))
    return max(8, min(16_384, available - max(used, _RESERVED_DESCRIPTORS) - 16))
