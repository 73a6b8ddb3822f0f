"""
Addresses of servers, which users give and which may hold a password: checked when a pipeline is built, and
shown in messages without their secrets; and the methods by which those of the web are asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from asyncstream.errors import MissingExtra, PipelineError
from asyncstream.validation import refuse

__all__ = (
    "HTTP_METHODS",
    "parsed_redis",
    "redis_address",
    "refuse_address",
    "server_address",
    "without_keys",
    "without_secrets",
)

HTTP_METHODS: Final = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH")

_KEY: Final = re.compile(
    r"(?<=/)(?:[0-9A-Fa-f]{32,}|(?=[^/]*[a-z])(?=[^/]*[A-Z])(?=[^/]*[0-9])[\w:~-]{20,})(?=/|$)"
)
"""
A segment of a path that looks drawn by chance, as keys of web hooks do: many hexadecimal digits, or a long
mixture of all kinds of characters. Words, numbers, names of files and UUIDs do not.
"""

_WEB: Final = frozenset({"http", "https", "ws", "wss"})


def without_secrets(address: str) -> str:
    """
    An address as messages may show it, be it a proper one or not: without user, password and query, and on
    the web without fragment and keys in its path. Of what is no URL, the first word.
    """
    scheme, _, rest = address.partition("://")
    if not rest or not re.fullmatch(r"[\w+.-]+", scheme):
        return re.sub(r"(?s)[^\w.-].*", "...", address)
    before, _, place = rest.rpartition("@")
    if "?" in before:  # the "@" is of the query, or the "?" of the password
        return f"{scheme}://..."
    place = place.partition("?")[0]
    if scheme.lower() in _WEB:
        place = without_keys(place.partition("#")[0])
    return f"{scheme}://{place}"


def without_keys(path: str) -> str:
    """
    A path without what looks like a key in it, which some services take there. A key that looks like a word
    is shown: who can choose has it in a header.
    """
    return _KEY.sub("…", path)


def refuse_address(expected: str, url: object, advice: str = "") -> PipelineError:
    """The error for a wrong address, without its secrets, to be raised by the caller."""
    return refuse("url", expected, without_secrets(url) if isinstance(url, str) else url, advice)


def server_address(
    url: object, feature: str, extra: str, expected: str, parse: Callable[[str], object], example: str
) -> str:
    """
    `url`, if it is the address of a server.

    Args:
        feature: what needs the extra.
        extra: what has the server's library.
        expected: what is at such an address, for the message.
        parse: imports the library, and raises something for what is no address.
        example: what an address looks like.

    Raises:
        MissingExtra: if the library is not installed.
        PipelineError: if it is none. What the parser says is not quoted, for that may be of the password.
    """
    wanted, advice = f"the address of {expected}", f"for example {example}"
    if not isinstance(url, str) or not url.strip():
        raise refuse_address(wanted, url, advice)
    try:
        parse(url)
    except ImportError as error:
        raise MissingExtra(feature, extra, error) from error
    except Exception:
        raise refuse_address(wanted, url, advice) from None
    return url


def parsed_redis(url: str) -> Mapping[str, Any]:
    """What redis-py makes of the address of a Redis; raises `ValueError` if it is none."""
    from redis.asyncio.connection import parse_url

    found: Mapping[str, Any] = parse_url(url)
    parts = urlsplit(url)
    if parts.scheme == "unix" and (parts.hostname or not parts.path.startswith("/") or parts.path == "/"):
        # redis-py takes what stands before the path for nothing: unix://run/r.sock would be /r.sock
        raise ValueError("a socket has an absolute path")
    if parts.scheme != "unix" and not re.fullmatch(r"/?[0-9]*", parts.path):
        # redis-py takes what is no number for 0, and what is two for one
        raise ValueError("a database has a number")
    return found


def redis_address(url: object, feature: str) -> str:
    """`url`, if it is the address of a Redis; raises as `server_address` does."""
    of_socket = isinstance(url, str) and url.startswith("unix:")
    example = "unix:///run/redis.sock" if of_socket else "redis://localhost:6379/0"
    return server_address(url, feature, "redis", "a Redis server", parsed_redis, example)
