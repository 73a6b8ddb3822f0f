"""
What a codec is, and what stands in for an exception that none can keep.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ("Codec", "ForeignError")


class Codec(Protocol):
    """
    Turns values into bytes and back. That of a job's checkpoints is given lists, tuples, dicts and numbers
    which steps keep, and your values in them. It is used in the event loop, which it holds up, and by several
    threads at a time.

    Whatever its methods raise counts as a `CodecError`, which fails the job: what may pass is to be tried
    again in there.

    If `encode` makes other bytes of equal values in another process, as of sets, a method `encode_ordered` of
    the same argument may make the same ones, which are never read: by them the journal of calls knows an
    element again.

    Attributes:
        name: what a checkpoint notes, so that it is read with the codec that wrote it; to be changed when
            `decode` can no longer read what an earlier `encode` wrote.
    """

    name: str

    def encode(self, value: Any, /) -> bytes:
        """
        The bytes from which `decode` makes an equal value of the same types.

        Raises:
            CodecError: if that cannot be done; names the type and the path inside the value.
        """

    def decode(self, data: bytes, /) -> Any:
        """
        The value that `encode` was given.

        Raises:
            CodecError: if `data` is damaged, or names a class that is no longer there.
        """


class ForeignError(Exception):
    """
    Stands in, after a restore, for an exception that could not be kept itself.

    An exception is kept if its class can be imported and its arguments and attributes can be kept. Others
    must not make a snapshot fail, for they come from libraries, and what matters of them is what they say.

    Attributes:
        kind: qualified name of the exception's class.
        text: type and message, as a log would show them.
    """

    __module__ = "asyncstream.codec"  # by which bytes name it

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text

    def __str__(self) -> str:
        return self.text
