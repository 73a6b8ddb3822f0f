"""
Rows of a file as objects of a class: what `model=` of the file sources does.

A class is a dataclass, a NamedTuple, a TypedDict, or a pydantic model, which reads rows in its own way. For
the others the types of the fields say what a value must be, and nothing is guessed: an int is no str, and a
float no int, but an int is a float. Text becomes what JSON has no word for: datetime, date, time (ISO 8601),
Decimal, UUID, paths, and enums by their values. Bytes, timedelta and maps, as a dict, are for rows of tables.
In a CSV file, where all is text, numbers and bools are read too, and an empty field is None where that is
allowed. What a row has besides the fields is left out.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import repeat
from pathlib import Path, PurePath
from typing import (
    Any,
    Final,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from asyncstream.errors import describe_error, safe_repr
from asyncstream.validation import refuse

__all__ = ("Unfit", "UnreadableRow", "reader")

_EXPECTED: Final = "a dataclass, a NamedTuple, a TypedDict or a pydantic model"

Read = Callable[[Any], Any]


class Unfit(Exception):
    """
    Raised for a value that is not what a field asks for.

    Attributes:
        path: of the field inside the row, such as `.address.city`.
        reason: what was expected, and what came.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def __str__(self) -> str:
        return f"field {self.path.removeprefix('.')}: {self.reason}" if self.path else self.reason


class UnreadableRow(dict[str, Any]):
    """
    A row with a value that is nothing in Python, such as a date after 9999.

    Args:
        row: what of it can be read.
        reason: why not all can.
    """

    def __init__(self, row: dict[str, Any], reason: str) -> None:
        super().__init__(row)
        self.reason = reason


def reader(
    model: Any,
    *,
    is_text: bool = False,
    has_bools: bool = True,
    is_table: bool = False,
    has_pairs: bool = False,
) -> Read:
    """
    A function that makes an object of `model` of a row, and raises `Unfit` for one that does not fit.

    Args:
        model: the class.
        is_text: all values of rows are text.
        has_bools: otherwise 0 and 1 stand for them.
        is_table: rows have bytes and durations as well.
        has_pairs: maps come as lists of pairs, as Arrow's do.

    Raises:
        PipelineError: if it is no such class, or a field has a type that no row can hold.
    """
    if not isinstance(model, type):
        raise refuse("model", _EXPECTED, model)
    return _Reader(is_text, has_bools, is_table, has_pairs).of_model(model)


class _Reader:
    def __init__(self, is_text: bool, has_bools: bool, is_table: bool, has_pairs: bool) -> None:
        self._is_text = is_text
        self._has_bools = has_bools
        self._has_pairs = has_pairs
        self._scalars = _SCALARS | _OF_TABLES if is_table else _SCALARS
        self._made: dict[Any, Read] = {}

    def of_model(self, model: Any) -> Read:
        known = self._made.get(model)
        if known is not None:
            return known
        validate = getattr(model, "model_validate", None)
        if callable(validate):
            self._made[model] = _of_pydantic(validate)
            return self._made[model]

        def inside(value: Any) -> Any:
            """For a model inside itself, however deep the row is."""
            try:
                return made(value)
            except RecursionError as error:
                raise Unfit("it is nested too deeply") from error

        self._made[model] = inside
        made = self._of_fields(model)
        self._made[model] = made
        return made

    def _of_fields(self, model: Any) -> Read:
        needed = _needed(model)
        if needed is None:
            raise refuse("model", _EXPECTED, model, classes=True)
        try:
            hints = get_type_hints(model)
        except Exception as error:  # an annotation is any expression
            wanted = "a class whose annotations can be resolved"
            raise refuse("model", wanted, model, str(error), classes=True) from error
        readers = {name: self._of_type(hints[name], f"{model.__name__}.{name}") for name in needed}

        def read(row: Any) -> Any:
            if not isinstance(row, Mapping):
                raise Unfit(f"expected an object for {model.__name__}, got {safe_repr(row, 60)}")
            values = {}
            for name, convert in readers.items():
                if name in row:
                    try:
                        values[name] = convert(row[name])
                    except Unfit as unfit:
                        raise Unfit(unfit.reason, f".{name}{unfit.path}") from unfit.__cause__
                elif needed[name]:
                    raise Unfit("it is missing", f".{name}")
            try:
                return model(**values)
            except Exception as error:  # of `__post_init__`
                raise Unfit(f"no {model.__name__}: {describe_error(error)}") from error

        return read

    def _of_type(self, kind: Any, where: str) -> Read:
        origin, args = get_origin(kind), get_args(kind)
        if origin in (Required, NotRequired):
            return self._of_type(args[0], where)
        if kind is Any or kind is object:
            return lambda value: value
        if origin is Literal:
            return _one_of(args, str if self._is_text else None)
        if origin in (Union, types.UnionType):
            return self._of_union(args, where)
        if kind in (None, types.NoneType):
            return _one_of((None,), None)
        if kind in (list, tuple, dict) or origin in (list, tuple, dict, Sequence, Mapping, set, frozenset):
            return self._of_many(origin or kind, args, where)
        if kind in self._scalars:
            return _scalar(kind, self._is_text, self._has_bools)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _enum(kind, self._is_text)
        if isinstance(kind, type) and (_needed(kind) is not None or hasattr(kind, "model_validate")):
            return self.of_model(kind)
        raise refuse("model", f"a type that a row can hold for {where}", kind, classes=True)

    def _of_union(self, args: tuple[Any, ...], where: str) -> Read:
        readers = [self._of_type(arg, where) for arg in args if arg is not types.NoneType]
        may_be_none = types.NoneType in args

        def read(value: Any) -> Any:
            if may_be_none and (value is None or (self._is_text and value == "")):
                return None
            reasons = []
            for convert in readers:
                try:
                    return convert(value)
                except Unfit as unfit:
                    if len(readers) == 1:
                        raise
                    reasons.append(unfit.reason)
            raise Unfit(", and ".join(reasons))

        return read

    def _of_many(self, origin: Any, args: tuple[Any, ...], where: str) -> Read:
        if origin in (dict, Mapping):
            convert = self._of_type(args[1], where) if args else None
            return lambda value: _mapped(convert, _of_pairs(value) if self._has_pairs else value)
        make = {Sequence: list}.get(origin, origin)
        if origin is tuple and args and args[-1] is not ...:
            parts = [self._of_type(arg, where) for arg in args]
            return lambda value: make(_listed(parts, value, len(parts)))
        one = self._of_type(args[0] if args else Any, where)

        def read(value: Any) -> Any:
            items = _listed(repeat(one), value, None)
            try:
                return make(items)
            except TypeError as error:  # of a set, over what has no hash
                raise Unfit(f"no {origin.__name__}: {error}") from error

        return read


def _needed(model: Any) -> dict[str, bool] | None:
    """The names of the fields of a class, and which of them a row must have; None if it is no model."""
    if dataclasses.is_dataclass(model):
        return {
            field.name: field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            for field in dataclasses.fields(model)
            if field.init
        }
    if is_typeddict(model):
        return {name: name in model.__required_keys__ for name in model.__annotations__}
    if isinstance(model, type) and issubclass(model, tuple) and hasattr(model, "_field_defaults"):
        fields: tuple[str, ...] = model._fields  # type: ignore[attr-defined]  # it is a NamedTuple
        return {name: name not in model._field_defaults for name in fields}
    return None


def _of_pydantic(validate: Callable[[Any], Any]) -> Read:
    def read(row: Any) -> Any:
        try:
            return validate(row)
        except Exception as error:  # also what the user's validators raise, which pydantic lets pass
            if type(error).__module__.startswith("pydantic."):  # over the class: one that is not complete
                raise
            own: Any = error
            if not hasattr(own, "error_count"):  # it is none of pydantic's
                raise Unfit(describe_error(error)) from error
            found = own.errors()[0]
            path = "".join(f".{part}" for part in found["loc"])
            raise Unfit(str(found["msg"]), path) from error

    return read


_SCALARS: Final = frozenset({bool, int, float, str, datetime, date, time, Decimal, UUID, Path, PurePath})
_OF_TABLES: Final = frozenset({bytes, timedelta})
_NUMBERS: Final = frozenset({int, float, Decimal})
"""Types that take underscores between digits, as programs have them and rows do not: `12_34` is no number."""

_BOOLS: Final = {"true": True, "false": False, "1": True, "0": False}


def _scalar(kind: Any, is_text: bool, has_bools: bool) -> Read:
    convert: Read | None = None
    if kind not in (bool, int, float, str, bytes, timedelta):
        convert = getattr(kind, "fromisoformat", kind)
    elif is_text and kind is not str:
        convert = (lambda text: _BOOLS[text.lower()]) if kind is bool else kind
    numbers = {float: (int,), Decimal: (int, float)}.get(kind, ())

    def read(value: Any) -> Any:
        if type(value) is kind:
            return value
        if kind is bool and not has_bools and type(value) is int and value in (0, 1):
            return value == 1
        try:
            if type(value) in numbers:
                return kind(value if type(value) is int else str(value))
            if convert is not None and type(value) is str and not (kind in _NUMBERS and "_" in value):
                return convert(value)
        except (ArithmeticError, KeyError, ValueError):
            pass
        raise Unfit(f"expected {kind.__name__}, got {safe_repr(value, 60)}")

    return read


def _enum(kind: type[Enum], is_text: bool) -> Read:
    members = {_key(member.value, is_text): member for member in kind}

    def read(value: Any) -> Any:
        try:
            return members[_key(value, is_text)]
        except (KeyError, TypeError):
            raise Unfit(f"expected a value of {kind.__name__}, got {safe_repr(value, 60)}") from None

    return read


def _key(value: Any, is_text: bool) -> Any:
    return str(value) if is_text else (type(value), value)


def _one_of(values: tuple[Any, ...], as_text: Callable[[Any], Any] | None) -> Read:
    def read(value: Any) -> Any:
        for known in values:
            if (type(known) is type(value) and known == value) or (as_text and as_text(known) == value):
                return known
        raise Unfit(f"expected {' or '.join(map(repr, values))}, got {safe_repr(value, 60)}")

    return read


def _listed(readers: Iterable[Read], value: Any, count: int | None) -> list[Any]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise Unfit(f"expected a list{'' if count is None else f' of {count}'}, got {safe_repr(value, 60)}")
    made = []
    for number, (convert, item) in enumerate(zip(readers, value, strict=False)):
        try:
            made.append(convert(item))
        except Unfit as unfit:
            raise Unfit(unfit.reason, f"[{number}]{unfit.path}") from unfit.__cause__
    return made


def _of_pairs(value: Any) -> Any:
    """A map of Arrow's, which comes as pairs, as a mapping."""
    if type(value) is list and set(map(type, value)) <= {tuple}:
        with suppress(TypeError):  # over keys that have no hash
            return dict(value)
    return value


def _mapped(convert: Read | None, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise Unfit(f"expected an object, got {safe_repr(value, 60)}")
    made = {}
    for name, item in value.items():
        try:
            made[name] = item if convert is None else convert(item)
        except Unfit as unfit:
            raise Unfit(unfit.reason, f"[{name!r}]{unfit.path}") from unfit.__cause__
    return made
