"""Exposure: what of a server is seen from outside: TLS, pages of other sites, other machines."""

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from leafbeam.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """How a server is reached.

    Args:
        certificate: A PEM file, to answer over TLS; it may hold the private key too.
        private_key: The PEM file of its private key.
        origins: Sites such as "https://shop.example.com" whose pages may read answers (CORS).
        insecure: True lets other machines reach a server without keys.

    Raises:
        ArgumentError: For files that are no certificate with its key, and for what is no origin.
    """

    certificate: Path | None = None
    private_key: Path | None = None
    origins: tuple[str, ...] = ()
    insecure: bool = False

    def __post_init__(self) -> None:
        for origin in self.origins:
            try:
                parts = urlsplit(origin)
                is_origin = parts.scheme in ("http", "https") and origin == f"{parts.scheme}://{parts.netloc}"
                is_origin = is_origin and bool(parts.hostname) and parts.username is None and (parts.port or 0) >= 0
            except ValueError:
                is_origin = False
            if not is_origin:
                raise ArgumentError(f"{origin!r:.90} is no origin of pages: expected one such as https://shop.example.com")
        if self.certificate is None:
            if self.private_key is not None:
                raise ArgumentError("a private key goes with its certificate: pass both files")
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.private_key, password="")
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise ArgumentError(
                f"{self.certificate} is no certificate with its private key, in PEM and without a password: {error}"
            ) from error

    @property
    def scheme(self) -> Literal["http", "https"]:
        return "http" if self.certificate is None else "https"

    def check(self, host: str, *, has_keys: bool) -> None:
        """Raise ArgumentError if other machines would reach a server without keys."""
        if is_loopback(host) or has_keys or self.insecure:
            return
        raise ArgumentError(
            f"{host} is an address that other machines may reach, and without keys everyone there may read what this server "
            "answers: make a key with `leafbeam keys add NAME` and pass --keys keys.json, or pass --insecure if a proxy or a "
            "network keeps others out"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
