"""
Where a broker of MQTT is, and how one shows it who one is.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from asyncstream.addresses import server_address
from asyncstream.validation import refuse

__all__ = ("Address", "address_of", "check_tls")

_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker is, and who one is there."""

    host: str
    port: int
    user: str | None
    password: str | None
    is_secure: bool

    def __str__(self) -> str:
        return f"MQTT at {self.host}:{self.port}"


def address_of(url: object) -> Address:
    """The address of a broker; what is wrong with it is a `PipelineError`."""
    example = "mqtt://localhost:1883, or mqtts:// for TLS"
    return _parsed(server_address(url, "MQTT", "mqtt", "an MQTT broker", _parsed, example))


def _parsed(url: str) -> Address:
    import paho.mqtt.client  # noqa: F401

    parts = urlsplit(url)
    port = _PORTS[parts.scheme] if parts.port is None else parts.port
    if parts.scheme not in _PORTS or not port or not parts.hostname:
        raise ValueError(url)
    user, password = (None if one is None else unquote(one) for one in (parts.username, parts.password))
    return Address(parts.hostname, port, user, password, parts.scheme == "mqtts")


def check_tls(tls: object, address: Address) -> ssl.SSLContext | None:
    """What TLS is done with; None: it is not."""
    if tls is None:
        return ssl.create_default_context() if address.is_secure else None
    if not isinstance(tls, ssl.SSLContext) or not address.is_secure:
        raise refuse("tls", "an ssl.SSLContext, with an address of mqtts://", tls)
    return tls
