"""
How deep orjson may be let into a value.

orjson counts the lists, dicts and dataclasses that it goes into and refuses more than 254 inside each other;
tuples it does not count, and where thousands are inside each other it writes past its memory, which ends the
process. So who gives it tuples that come from elsewhere looks before.
"""

from __future__ import annotations

import gc
from types import NoneType
from typing import Any, Final

__all__ = ("DEEPEST", "check_depth")

DEEPEST: Final = 254
"""How many lists and dicts orjson takes inside each other."""

_SCALARS: Final = frozenset({NoneType, bool, int, float, str, bytes})
_HOLDERS: Final = frozenset({tuple, list, dict})

_MANY: Final = 2000


def check_depth(value: Any, deepest: int = DEEPEST) -> None:
    """
    Refuse what is nested deeper than that, or holds itself: raises `TypeError`. By default that is how deep
    orjson and Arrow go.
    """
    kind = type(value)
    if kind in _SCALARS:
        return
    level: Any = [value]  # all that is as deep inside it as the rest
    left = deepest + 1
    if kind is dict:  # as most are; its keys hold nothing
        level, left = value.values(), deepest
        if _SCALARS.issuperset(map(type, level)):
            return
    for _ in range(left):
        kinds = set(map(type, level))
        kinds -= _SCALARS
        if not kinds:
            return
        if not kinds <= _HOLDERS:  # what other objects refer to is no matter of JSON's
            if not any(map(_holds, kinds)):
                return
            level = [part for part in level if _holds(type(part))]
        if len(level) > _MANY:  # each once: a list that is often inside another would be many parts
            level = {id(part): part for part in level}.values()
        level = gc.get_referents(*level)
    raise TypeError(
        f"a {kind.__qualname__} is nested more than {deepest} levels deep, or holds itself, which is too deep"
    )


def _holds(kind: type) -> bool:
    """Whether orjson looks for more inside what is of this type."""
    return kind in _HOLDERS or hasattr(kind, "__dataclass_fields__")
