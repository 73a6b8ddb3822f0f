"""
Members of enums by their names: values may be numbered anew, as `auto` does when a member comes in between.
"""

from __future__ import annotations

from enum import Enum, Flag
from functools import reduce
from operator import or_
from typing import Any

from asyncstream.codec.classes import Refused
from asyncstream.codec.fields import changed
from asyncstream.errors import safe_repr

__all__ = ("member_of", "names_of")


def names_of(value: Enum) -> str | list[str] | int:
    """
    What tells this member from the others: its name, or of a combination of flags theirs, or a number if
    there are no names for all of it. Raises `Refused` if it is no member.
    """
    name: str = value._name_  # `name` may be a property, or a member, of its class
    if type(value).__members__.get(name) is value:
        return name
    if isinstance(value, Flag):  # a combination is no member, but made of some, or a number
        # of a bit by itself there may be no member, or one without a name
        members = [member for member in value if member is not None and member._name_ is not None]
        if members and reduce(or_, members) == value:
            return [str(member._name_) for member in members]
        return int(value._value_)
    raise Refused(f"cannot keep {safe_repr(value, 80)}, which is no member of its enum")


def member_of(kind: Any, path: str, names: str | list[str] | int) -> Any:
    """The member that `names_of` was given; raises `CodecError` if there is none of its name any more."""
    if issubclass(kind, Flag) and type(names) is int:
        return kind(names)
    each: list[Any] = names if issubclass(kind, Flag) and type(names) is list else [names]
    for name in each:
        if name not in kind.__members__:
            raise changed(f"the enum {path} has no member {name!r}")
    return reduce(or_, map(kind.__members__.__getitem__, each))
