"""
The codec that a user asks for.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncstream.codec.base import Codec
from asyncstream.codec.json import JsonCodec
from asyncstream.codec.own import OwnCodec
from asyncstream.codec.pickled import PickleCodec
from asyncstream.validation import refuse

__all__ = ("codec",)


def codec(name: str | Codec, types: Iterable[type] = ()) -> Codec:
    """
    The codec called `name`, or the codec that was passed, held to what it promises (`OwnCodec`).

    Args:
        name: "json", "pickle", or a `Codec`.
        types: classes that the values are made of, see `JsonCodec`; for "json" only.

    Raises:
        PipelineError: if there is no such codec, it has no name, or it takes no types.
    """
    if name == "json":
        return JsonCodec(types)
    if not isinstance(types, Iterable) or (types := tuple(types)):
        raise refuse("types", "none, for only codec='json' asks for them", types)
    if name == "pickle":
        return PickleCodec()
    if isinstance(name, str | type) or not (hasattr(name, "encode") and hasattr(name, "decode")):
        raise refuse("codec", "'json', 'pickle' or a Codec", name)
    return name if type(name) in (JsonCodec, PickleCodec, OwnCodec) else OwnCodec(name)
