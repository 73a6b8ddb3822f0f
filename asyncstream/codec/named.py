"""
Which classes the bytes of `JsonCodec` name, and whether decoding them would fill one; nothing is decoded.

For people who want to know what is in a store that others can write to. No module is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import orjson

from asyncstream.codec.classes import Classes, NotImported
from asyncstream.codec.unpacking import NAMED
from asyncstream.errors import CodecError, safe_repr

__all__ = ("NamedClass", "named_classes")


@dataclass(frozen=True, slots=True)
class NamedClass:
    """
    A class that bytes name.

    Attributes:
        path: its name, `module:qualified.name`.
        state: "registered" in types=; "imported": its module is; "absent": its module is not, here;
            "refused": values are never made of it.
        reason: why, if it is refused.
    """

    path: str
    state: Literal["registered", "imported", "absent", "refused"]
    reason: str = ""


def named_classes(chunks: Iterable[bytes], types: Iterable[type] = ()) -> list[NamedClass]:
    """
    The classes that these bytes name, by name.

    Args:
        chunks: what `JsonCodec.encode` gave.
        types: as for `JsonCodec`.

    Raises:
        CodecError: if they are not such bytes.
    """
    classes = Classes(types)
    return [_judged(path, tag, classes) for path, tag in sorted(_names(chunks))]


def _names(chunks: Iterable[bytes]) -> set[tuple[str, str]]:
    """Each name, with the tag that says what kind of class it is to be."""
    found: set[tuple[str, str]] = set()
    for chunk in chunks:
        try:
            waiting = [orjson.loads(chunk)]
        except ValueError as error:
            raise CodecError(f"these are not the bytes of a value: {error}") from error
        while waiting:
            value = waiting.pop()
            if type(value) is dict:
                # a plain dict that looks like this is never written as it is
                if len(value) == 1:
                    ((tag, packed),) = value.items()
                    if tag in NAMED:
                        path = packed[0] if type(packed) is list and packed else packed
                        found.add((path if type(path) is str else safe_repr(path, 80), tag))
                waiting += value.values()
            elif type(value) is list:
                waiting += value
    return found


def _judged(path: str, tag: str, classes: Classes) -> NamedClass:
    try:
        kind = classes.find(path)
    except NotImported:
        module, _, name = path.partition(":")
        if name and all(part.isidentifier() for part in module.split(".")):
            return NamedClass(path, "absent")
        return NamedClass(path, "refused", f"{path!r} is no name of a class")
    except CodecError as error:
        return NamedClass(path, "refused", str(error))
    what, is_one = NAMED[tag]
    if not is_one(kind):
        return NamedClass(path, "refused", f"{path} is not {what}")
    return NamedClass(path, "registered" if path in classes.registered else "imported")
