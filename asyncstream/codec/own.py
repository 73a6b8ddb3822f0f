"""
A codec that the user wrote, held to what a codec promises.
"""

from __future__ import annotations

from typing import Any, Final

from asyncstream.codec.base import Codec
from asyncstream.codec.classes import name_of
from asyncstream.errors import CodecError, describe_error
from asyncstream.shown import Shown
from asyncstream.validation import refuse

__all__ = ("OwnCodec",)

_KEPT: Final = [None, True, -(2**63), 0.5, "a", [1, [2, []]], {"a": 1, "b": {}}]
"""What steps keep of their own, of every kind. What becomes of tuples is the codec's affair."""


class OwnCodec(Shown):
    """
    Another codec, of which whatever it raises is a `CodecError` that names it, and what it writes `bytes`.

    Args:
        codec: the user's.

    Raises:
        PipelineError: if its `name` is no text.
    """

    def __init__(self, codec: Codec) -> None:
        name = getattr(codec, "name", None)
        if not isinstance(name, str) or not name:
            raise refuse("codec", "a Codec whose name is a text, which checkpoints note", codec)
        self.name = name
        self._codec = codec

    def encode(self, value: Any) -> bytes:
        return self._written("encode", value)

    def encode_ordered(self, value: Any) -> bytes:
        """As `PickleCodec.encode_ordered`, if the codec has that; else as `encode`."""
        return self._written("encode_ordered" if hasattr(self._codec, "encode_ordered") else "encode", value)

    def _written(self, method: str, value: Any) -> bytes:
        try:
            data = getattr(self._codec, method)(value)
        except CodecError:
            raise
        except Exception as error:
            text = f"codec {self.name!r} refuses a {name_of(type(value))}: {describe_error(error)}"
            raise CodecError(text) from error
        if not isinstance(data, bytes | bytearray | memoryview):
            raise CodecError(f"codec {self.name!r} gave a {name_of(type(data))} for a value, and not bytes")
        return bytes(data)  # of this very type, and not what it writes the next value into

    def decode(self, data: bytes) -> Any:
        try:
            return self._codec.decode(data)
        except CodecError:
            raise
        except Exception as error:
            text = f"codec {self.name!r} cannot read these bytes: {describe_error(error)}"
            raise CodecError(text) from error

    def check_keeps(self) -> None:
        """See whether it keeps what steps keep of their own; raises `PipelineError` if not."""
        expected = "a Codec that keeps None, numbers, texts, lists and dicts as what they are"
        try:
            found = self.decode(self.encode(_KEPT))
        except CodecError as error:
            raise refuse("codec", expected, self._codec, str(error)) from error
        if repr(found) != repr(_KEPT):  # which tells 1 from True
            raise refuse("codec", expected, self._codec, f"of {_KEPT!r} it makes {found!r}")
