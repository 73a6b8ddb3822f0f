"""
Messages of brokers: what makes elements of their bytes, and bytes of elements; and those that are no element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from asyncstream.connectors.json_values import loads
from asyncstream.connectors.rows import Default, JsonWriter
from asyncstream.errors import SourceError, describe_error, safe_repr
from asyncstream.validation import function, refuse

__all__ = ("Decode", "Encode", "RejectedMessage", "decoder", "encoder", "unreadable")

Decode: TypeAlias = Literal["json", "bytes", "text"] | Callable[[bytes], Any]
"""Makes an element of what a message holds: JSON, the bytes, their text, or a function of your own."""

Encode: TypeAlias = Literal["json", "bytes", "text"] | Callable[[Any], bytes]
"""Makes of an element what a message holds; what raises refuses the element."""

_EXPECTED = "'json', 'bytes', 'text' or a function"


@dataclass(frozen=True, slots=True)
class RejectedMessage:
    """
    A message that is no element.

    Attributes:
        source: the stream, subject, table or URL that it came from, without secrets.
        id: what it is called there; "": it has no name.
        value: what it holds, as it came.
        reason: what is wrong with it.
    """

    source: str
    id: str
    value: Any
    reason: str

    def error(self) -> SourceError:
        """The same as an error, to be raised by the caller."""
        place = f"{self.source}, {self.id}" if self.id else self.source
        return SourceError(f"{place}: {self.reason}: {safe_repr(self.value, 200)}")


def decoder(decode: object, name: str = "decode") -> Callable[[bytes], Any]:
    """
    The function that `decode`, an argument called `name`, stands for; what is no `Decode` is a
    `PipelineError`.
    """
    if decode == "json":
        return loads
    if decode == "bytes":
        return bytes
    if decode == "text":
        return bytes.decode
    if isinstance(decode, str):
        raise refuse(name, _EXPECTED, decode)
    return function(name, decode, "data")


def encoder(encode: object, default: Default | None = None, name: str = "encode") -> Callable[[Any], bytes]:
    """
    The function that `encode`, an argument called `name`, stands for; what is no `Encode` is a
    `PipelineError`. For JSON, `default` makes of a value of the user's own type one that can be written.
    """
    if encode == "json":
        return JsonWriter(default).write
    if default is not None:
        raise refuse("default", "None, for it is asked by encode='json' only", default)
    if encode == "bytes":
        return partial(_as_bytes, name)
    if encode == "text":
        return partial(_as_text, name)
    if isinstance(encode, str):
        raise refuse(name, _EXPECTED, encode)
    return function(name, encode, "element")


def _as_bytes(name: str, value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"expected bytes, got {type(value).__name__}; {name}='json' writes JSON")
    return bytes(value)


def _as_text(name: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {type(value).__name__}; {name}='json' writes JSON")
    return value.encode()


def unreadable(error: Exception) -> str:
    """What is wrong with a message that could not be decoded."""
    return f"it cannot be read: {describe_error(error)}"
