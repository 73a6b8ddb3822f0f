"""
How pickle is to keep objects that consist of fields: by the names of these; and members of enums by theirs.

By itself it keeps a NamedTuple, or a frozen dataclass with slots, as values in the order of their fields, and
gives other objects back the attributes that they had. So if the class has changed since, fields would hold
each other's values, what is renamed would be lost, and what is new would not be there. A member of an enum it
keeps as its value, which is another member's if they are numbered anew.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from sys import intern
from typing import Any, Final

from asyncstream.codec.classes import Refused, fill, has_plain_base, is_named_tuple, name_of, slots_of
from asyncstream.codec.enums import member_of, names_of
from asyncstream.codec.fields import (
    Field,
    changed,
    check_fields,
    default_of,
    fields_of,
    has_fields,
    is_model,
    private_fields_of,
    tell_of,
)

__all__ = ("by_name",)

PICKLES: Final = (
    "__reduce__",
    "__reduce_ex__",
    "__getnewargs__",
    "__getnewargs_ex__",
    "__getstate__",
    "__setstate__",
)
"""Methods by which a class says itself what pickle is to make of its objects."""

SET: Final = "__pydantic_fields_set__"
"""What the state of a model of pydantic has, and no other."""

MAKERS: Final = ("attr", "collections", "dataclasses", "pydantic")
"""Packages which give some of those to the classes that they make; "collections" makes NamedTuples."""


def by_name(value: Any) -> tuple[Any, ...] | None:
    """How pickle is to make this value again, if it has fields, and its class does not say so itself."""
    kind: Any = type(value)
    reduce = _reducer(kind)
    return None if reduce is None else reduce(value)


@lru_cache(maxsize=1000)
def _reducer(kind: Any) -> Callable[[Any], tuple[Any, ...] | None] | None:
    """What does `by_name` for a class; None: its objects are not kept by their fields."""
    if issubclass(kind, Enum):
        is_its_own = any(_maker_of(kind, method) not in (None, "enum") for method in PICKLES[:2])
        return None if is_its_own else _by_names
    if not _leaves_it_to_pickle(kind):
        return None
    names = tuple(field.name for field in fields_of(kind))
    if issubclass(kind, tuple):
        return lambda value: (_tuple_of, (kind, names, tuple(value)), object.__getstate__(value))
    # that of a frozen dataclass with slots would be a list
    is_list = _maker_of(kind, "__getstate__") == "dataclasses"
    state_of = object.__getstate__ if is_list else kind.__getstate__
    return lambda value: (_object_of, (kind, names), (names, state_of(value)), None, None, _settle)


def _by_names(value: Any) -> tuple[Any, ...] | None:
    try:
        return _member_of, (type(value), names_of(value))
    except Refused:  # one that its class makes for each value it does not know
        return None


def _leaves_it_to_pickle(kind: type) -> bool:
    if any(_maker_of(kind, method) not in (None, *MAKERS) for method in PICKLES):
        return False
    return is_named_tuple(kind) or (has_fields(kind) and has_plain_base(kind))


def _maker_of(kind: type, method: str) -> str | None:
    """The package of whose code a method of a class is; None: there is none, or it is Python's own."""
    module = getattr(getattr(kind, method, None), "__module__", None)
    return None if module is None else str(module).partition(".")[0]


def _member_of(kind: Any, names: str | list[str] | int) -> Any:
    if not issubclass(kind, Enum):
        raise changed(f"{name_of(kind)} is not an enum")
    return member_of(kind, name_of(kind), names)


def _tuple_of(kind: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    if not is_named_tuple(kind):
        raise changed(f"{name_of(kind)} is not a NamedTuple")
    if names != kind._fields:
        known = dict(zip(names, values, strict=True)) | _defaults(kind, names)
        values = tuple(map(known.__getitem__, kind._fields))
    return tuple.__new__(kind, values)


def _object_of(kind: Any, names: tuple[str, ...]) -> Any:
    if not has_fields(kind):
        raise changed(f"{name_of(kind)} is not a class with fields")
    return kind.__new__(kind)


def _settle(made: Any, kept: tuple[tuple[str, ...], Any]) -> None:
    """Give an object what is kept of it, and what its class has got since."""
    names, state = kept
    kind: Any = type(made)
    _filler(kind, names)(made, state)


@lru_cache(maxsize=1000)
def _filler(kind: type, names: tuple[str, ...]) -> Callable[[Any, Any], None]:
    """What does `_settle` for objects that were of a class with these fields."""
    # or by now the class says itself what is made of older objects
    is_compared = _leaves_it_to_pickle(kind)
    is_grown = is_compared and bool(_new_fields(kind, names))
    is_of_model = is_model(kind)
    private = private_fields_of(kind) if is_compared and is_of_model else ()
    has_own = hasattr(kind, "__setstate__") and _maker_of(kind, "__setstate__") != "dataclasses"
    is_simple = not slots_of(kind)

    def settle(made: Any, state: Any) -> None:
        if is_compared and is_of_model != (type(state) is dict and SET in state):
            raise changed(f"{name_of(kind)} is not a {'dataclass' if is_of_model else 'model of pydantic'}")
        if has_own:
            made.__setstate__(state)
        elif is_simple and type(state) is dict:
            made.__dict__.update({intern(name): value for name, value in state.items()})
        else:
            for attributes in state if isinstance(state, tuple) else (state,):
                fill(made, attributes or {})
        if is_grown:
            fill(made, _defaults(kind, names))
        if private:
            defaults = {field.name: default_of(field, name_of(kind)) for field in private}
            object.__setattr__(made, "__pydantic_private__", defaults | (made.__pydantic_private__ or {}))

    return settle


def _defaults(kind: type, names: tuple[str, ...]) -> dict[str, Any]:
    """What the fields hold that objects with these do not have."""
    return {field.name: default_of(field, name_of(kind)) for field in _new_fields(kind, names)}


@lru_cache(maxsize=1000)
def _new_fields(kind: type, names: tuple[str, ...]) -> tuple[Field, ...]:
    """The fields that a class has got since it had these; the log is told of them once."""
    check_fields(kind, name_of(kind), names)
    new = tuple(field for field in fields_of(kind) if field.is_expected and field.name not in names)
    for field in new:
        tell_of(field, name_of(kind))
    return new
