"""
Which classes values may be made of, and how an instance is filled without the class's own code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property, lru_cache
from inspect import signature
from types import FunctionType, MemberDescriptorType
from typing import Any, Final

from asyncstream.codec.fields import has_fields
from asyncstream.errors import CodecError, safe_repr
from asyncstream.validation import refuse

__all__ = (
    "Classes",
    "NotImported",
    "Refused",
    "arguments_of",
    "fill",
    "has_plain_base",
    "held",
    "is_named_tuple",
    "make_error",
    "members_besides",
    "name_of",
    "slots_of",
)


_KEPT: Final = "enums, dataclasses, NamedTuples, attrs classes, pydantic models and exceptions"


class Refused(Exception):
    """Carries the path inside the value from where it is refused up to where it is reported."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = ""

    def inside(self, step: str) -> Refused:
        self.path = step + self.path
        return self


class NotImported(CodecError):
    """A class is named whose module is not there, or that another program's script has defined."""


class Classes:
    """
    Finds classes by the names that bytes have for them, `module:qualified.name`.

    Attributes:
        registered: those of `types`, by their names.
        grown: names of classes, with a field of each that older values lacked, of which the log has told.

    Args:
        types: classes that are found by name wherever they are defined, also inside a function.

    Raises:
        PipelineError: if one of them is no class that values can be kept of, or two have the same name.
    """

    def __init__(self, types: Iterable[type] = ()) -> None:
        self.grown: set[tuple[str, str]] = set()
        self.registered: dict[str, type] = {}
        if not isinstance(types, Iterable):
            raise refuse("types", "a list of classes", types)
        for kind in types:
            if not isinstance(kind, type) or not _is_kept(kind):
                raise refuse("types", _KEPT, kind, classes=True)
            if self.registered.setdefault(_path(kind), kind) is not kind:
                raise refuse("types", "classes of different names", kind, classes=True)

    def path(self, kind: type) -> str:
        """The name by which `find` finds this class; raises `Refused` if it does not."""
        path = _path(kind)
        try:
            found = self.find(path)
        except CodecError:
            found = None
        if found is not kind:
            raise Refused(
                f"cannot keep a {name_of(kind)}: its class is not found by that name; define it in a module, "
                "or name it in types="
            )
        if has_fields(kind) and not issubclass(kind, Enum | BaseException) and not has_plain_base(kind):
            raise Refused(
                f"cannot keep a {name_of(kind)}: it also derives from a built-in type, or is abstract"
            )
        return path

    def find(self, path: str) -> Any:
        """
        The class of this name.

        Raises:
            NotImported: if its module is not imported, or the script defines no such name, and it is not
                registered.
            CodecError: if there is no such class.
        """
        registered = self.registered.get(path)
        if registered is not None:
            return registered
        module, _, name = path.partition(":")
        found: Any = sys.modules.get(module)
        if found is None:
            raise NotImported(
                f"the class {path} is not there: bytes do not import modules; import {module} before, or "
                "name the class in types="
            )
        outermost = name.partition(".")[0]
        if module == "__main__" and outermost not in vars(found):  # each program has another
            raise NotImported(
                f"the class {path} is not there: the script or notebook that wrote this has defined it; run "
                f"that, or set __main__.{outermost} to the class before"
            )
        for part in name.split("."):
            inner = vars(found).get(part)  # nothing of the module's or the class's own is asked
            if not isinstance(inner, type):
                raise CodecError(
                    f"the class {path} is not there any more: {part!r} is no class; have this name stand for "
                    "the one that has taken its place"
                )
            found = inner
        return found


def _path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _is_kept(kind: type) -> bool:
    return issubclass(kind, Enum | BaseException) or has_fields(kind) or is_named_tuple(kind)


def is_named_tuple(kind: type) -> bool:
    names = getattr(kind, "_fields", None)
    return issubclass(kind, tuple) and isinstance(names, tuple) and all(type(name) is str for name in names)


def name_of(kind: type) -> str:
    """How messages name a class."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@lru_cache(maxsize=1000)
def slots_of(kind: Any) -> Mapping[str, MemberDescriptorType]:
    """What instances hold besides their `__dict__`: slots, and the fields of built-in exceptions."""
    found: dict[str, MemberDescriptorType] = {}
    for base in kind.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, MemberDescriptorType) and not name.startswith("__"):
                found.setdefault(name, member)
    return found


@lru_cache(maxsize=1000)
def _computed_of(kind: type) -> frozenset[str]:
    """The cached properties of a class."""
    found: set[str] = set()
    for base in reversed(kind.__mro__):
        for name, member in vars(base).items():
            if isinstance(member, cached_property):
                found.add(name)
            else:
                found.discard(name)  # it is something else in this class
        getter = vars(base).get("__getattr__")
        if "__attrs_attrs__" in vars(base) and isinstance(getter, FunctionType):
            # attrs makes slots of them, of which this alone knows what they are
            known = signature(getter).parameters.get("cached_properties")
            if known is not None and isinstance(known.default, dict):
                found.update(known.default)
    return frozenset(found)


def held(value: Any, names: Sequence[str]) -> dict[str, Any]:
    """
    The attributes of an object that are called so, without those it does not have.

    They are read from where it holds them: no property and no `__getattr__` of its class is asked.

    Raises:
        Refused: if it has others, which would be lost.
    """
    kind: Any = type(value)
    attributes: dict[str, Any] = {}
    for name, member in slots_of(kind).items():
        try:
            attributes[name] = member.__get__(value)
        except AttributeError:  # a slot that was not filled
            continue
    try:
        attributes |= object.__getattribute__(value, "__dict__")
    except AttributeError:
        pass
    found = {name: attributes[name] for name in names if name in attributes}
    if len(found) < len(attributes):
        for name in attributes:
            # no loss: what a class computes again, and what `Class[int](...)` leaves for type checkers
            if name in found or name == "__orig_class__":
                continue
            if name not in _computed_of(kind):
                raise Refused(f"cannot keep a {name_of(kind)} with the attribute {name!r}, which is no field")
    return found


def fill(made: Any, attributes: Mapping[str, Any]) -> None:
    """Give an object its attributes, where it holds them: no `__setattr__` of its class is called."""
    kind: Any = type(made)
    slots = slots_of(kind)
    for name, value in attributes.items():
        if name in slots:
            slots[name].__set__(made, value)
        else:
            object.__getattribute__(made, "__dict__")[name] = value


def has_plain_base(kind: type) -> bool:
    """Whether its objects are no dicts or exceptions, say, as well: then fields are all there is of them."""
    try:
        object.__new__(kind)
    except TypeError:
        return False
    return True


def arguments_of(error: BaseException) -> Any:
    """Of what `make_error` makes one like it."""
    kind = type(error)
    # an OSError tells its file names only there; a class of yours is not asked
    return kind.__reduce__(error)[1] if kind.__module__ == "builtins" else error.args


def make_error(kind: type[BaseException], args: Any) -> BaseException:
    """An exception of this class with these arguments, made by Python's own code alone."""
    if kind.__module__ == "builtins":
        return kind(*args)  # some keep arguments in fields that only their __init__ fills
    for base in kind.__mro__:
        if base.__module__ == "builtins":
            error: BaseException = base.__new__(kind, *args)
            error.args = args
            return error
        if "__new__" in vars(base):
            break
    raise CodecError(f"cannot make a {safe_repr(name_of(kind))}, which has its own __new__")


def members_besides(error: BaseException, again: BaseException) -> dict[str, Any]:
    """What `error` holds besides arguments and `__dict__`, where `again` has something else; it gets that."""
    found: dict[str, Any] = {}
    kind: Any = type(error)
    for name in slots_of(kind):
        value = getattr(error, name, again)
        if value is again or value is getattr(again, name, again):
            continue
        if name == "obj" and isinstance(error, AttributeError):  # a part of the program, as its traceback is
            continue
        try:
            object.__setattr__(again, name, value)
        except (AttributeError, TypeError):  # made of the arguments, and of nothing else
            continue
        found[name] = value
    return found
