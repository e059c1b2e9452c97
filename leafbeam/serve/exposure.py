"""Exposure: how a server can be reached: over TLS, from pages of other sites, from other machines."""

import ipaddress
import ssl
from dataclasses import dataclass
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
        insecure: If true, other machines may reach a server that has no keys.

    Raises:
        ArgumentError: For files that are not a certificate with its key, and for an invalid origin.
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
                raise ArgumentError(f"{origin!r:.90} is not an origin of pages: expected one such as https://shop.example.com")
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
