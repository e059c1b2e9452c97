"""How a server can be reached (TLS, pages of other sites, other machines), and what a client may send and hold open."""

import ipaddress
import os
import resource
import ssl
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from leafbeam.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """The settings of how a server can be reached.

    Args:
        certificate: A PEM file with the certificate for TLS; it may hold the private key too. Without it the server speaks
            plain HTTP.
        private_key: The PEM file with the private key of the certificate.
        origins: Sites such as "https://shop.example.com" whose pages may read answers (CORS).
        pictures: Sites such as "https://images.example.com" from which the server's page may load the items' pictures.
        insecure: If true, other machines may reach a server that has no keys.

    Raises:
        ArgumentError: For files that are not a certificate with its key, and for an invalid origin.
    """

    certificate: Path | None = None
    private_key: Path | None = None
    origins: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()
    insecure: bool = False

    def __post_init__(self) -> None:
        for origin in (*self.origins, *self.pictures):
            try:
                parts = urlsplit(origin)
                is_origin = parts.scheme in ("http", "https") and origin == f"{parts.scheme}://{parts.netloc}"
                # No name of a host has the characters that end a part of a header, or the @ after a user's name.
                is_origin = is_origin and parts.netloc.isascii() and not set(parts.netloc) & set(" ;,@'\"")
                is_origin = is_origin and bool(parts.hostname) and (parts.port or 0) >= 0
            except ValueError:
                is_origin = False
            if not is_origin:
                raise ArgumentError(
                    f"{origin!r:.90} is not the origin of a site: expected one such as https://shop.example.com"
                )
        if self.certificate is None:
            if self.private_key is not None:
                raise ArgumentError("the private key has no certificate: set exposure.certificate too")
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.private_key, password="")
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise ArgumentError(
                f"{self.certificate} is not a certificate with its private key, in PEM and without a password: {error}"
            ) from error

    @property
    def scheme(self) -> Literal["http", "https"]:
        return "http" if self.certificate is None else "https"

    def check(self, host: str, *, has_keys: bool) -> None:
        """Raise ArgumentError if other machines would reach a server without keys."""
        if is_loopback(host) or has_keys or self.insecure:
            return
        raise ArgumentError(
            f"other machines may reach {host}, and without keys everyone on them may read this server's answers: "
            "make a key with `leafbeam keys add NAME` and pass --keys keys.json, or pass --insecure if a proxy or a "
            "network keeps others out"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_RESERVED_DESCRIPTORS = 64  # for the process itself: index, catalog, log, listening socket, device


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """The limits of what a client may send and hold open.

    Args:
        max_header_bytes: The largest size, in bytes, of a request's line, headers and trailers together; a larger one gets 431.
        max_headers: The largest number of headers of a request; a request with more gets 431.
        max_pipelined: The largest number of requests that a client may send on a connection before it gets the first answer;
            more get 400.
        header_s: The number of seconds from the first byte of a connection or request in which all of its headers must
            arrive; after that the client gets 408.
        idle_s: The number of seconds that a connection stays open between two requests.
        write_s: The number of seconds in which a client must read an answer; after that its connection is closed.
        bulk_bytes_per_s: The number of bytes a second that the server reads from all clients together that send more than 8 KiB
            at once. Each chunk of a body counts as 256 bytes more than it has. With this limit, a flood of bodies leaves time
            for answers.
        max_connections: The largest number of open connections. Beyond it, a new connection replaces the one that has waited
            longest without a complete request; if all of them have a running request, the new one gets 503. The default is
            the number of free file descriptors, up to 16,384.
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
        minimums = {"max_header_bytes": 256, "max_headers": 1, "max_pipelined": 1, "max_connections": 1}
        for limit in fields(self):
            value, minimum = getattr(self, limit.name), minimums.get(limit.name, 0)
            if (value is not None and not value >= minimum) or value == 0:
                bound = f"at least {minimum}" if minimum else "above 0"
                raise ArgumentError(f"{limit.name} must be {bound}, not {value!r}")


def descriptor_limit() -> int:
    """Return how many connections this process can hold open: its file descriptors less those in use, at most 16,384."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    available = 1 << 20 if soft == resource.RLIM_INFINITY else soft
    used = len(os.listdir("/dev/fd"))
    return max(8, min(16_384, available - max(used, _RESERVED_DESCRIPTORS) - 16))
