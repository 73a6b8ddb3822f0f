"""
The fields of dataclasses, attrs classes, pydantic models and NamedTuples.

attrs and pydantic are no dependencies: a class of theirs can only be there if they are imported.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from asyncstream.errors import CodecError

__all__ = (
    "MODEL_PARTS",
    "Field",
    "changed",
    "check_fields",
    "default_of",
    "fields_of",
    "has_fields",
    "is_model",
    "is_record",
    "private_fields_of",
    "tell_of",
)

log = logging.getLogger("asyncstream.state")

MODEL_PARTS: Final = {
    "__pydantic_fields_set__": set,
    "__pydantic_extra__": dict,
    "__pydantic_private__": dict,
}
"""What a model of pydantic has besides its fields: which were set, others it was given, private ones."""


_Missing: Final = type(dataclasses.MISSING)
"""Of which a class that Spark has brought to a worker has an object of its own."""


class Field(NamedTuple):
    """
    A field of a class.

    Attributes:
        name: of the attribute.
        is_expected: each object that is made in the usual way has it.
        default: makes what it holds if it is not given; None: there is no default.
    """

    name: str
    is_expected: bool
    default: Callable[[], Any] | None


def is_record(kind: type) -> bool:
    """Whether this is a dataclass or an attrs class, of whose objects the fields are all there is."""
    return dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")


def is_model(kind: type) -> bool:
    """Whether this is a model of pydantic, of version 2 on."""
    pydantic: Any = sys.modules.get("pydantic.main")
    return pydantic is not None and hasattr(kind, "model_fields") and issubclass(kind, pydantic.BaseModel)


def has_fields(kind: type) -> bool:
    return is_record(kind) or is_model(kind)


@lru_cache(maxsize=1000)
def fields_of(kind: Any) -> tuple[Field, ...]:
    """The fields of a class that `has_fields`, or of a NamedTuple."""
    if issubclass(kind, tuple):
        given = {name: partial(_given, default) for name, default in kind._field_defaults.items()}
        return tuple(Field(name, True, given.get(name)) for name in kind._fields)
    if dataclasses.is_dataclass(kind):
        return tuple(map(_of_dataclass, dataclasses.fields(kind)))
    if is_model(kind):
        described: dict[str, Any] = kind.model_fields
        return tuple(_of_model(name, field) for name, field in described.items())
    attributes: Any = kind.__attrs_attrs__
    return tuple(map(_of_attrs, attributes))


@lru_cache(maxsize=1000)
def private_fields_of(kind: Any) -> tuple[Field, ...]:
    """The private attributes of a model of pydantic that each object has."""
    nothing: Any = sys.modules["pydantic_core"].PydanticUndefined
    described: dict[str, Any] = kind.__private_attributes__
    found = []
    for name, attribute in described.items():
        if attribute.default_factory is not None:
            looks = getattr(attribute, "default_factory_takes_validated_data", False)
            found.append(Field(name, True, None if looks else attribute.default_factory))
        elif attribute.default is not nothing:
            found.append(Field(name, True, attribute.get_default))
    return tuple(found)


def check_fields(kind: type, path: str, names: Iterable[str]) -> None:
    """Raises `CodecError` if a class does not have these fields any more."""
    gone = set(names) - {field.name for field in fields_of(kind)}
    if gone:
        raise changed(f"{path} has no field {min(gone)!r}")


def changed(how: str) -> CodecError:
    """The error for what is kept of a class as it was."""
    return CodecError(f"{how} any more; leave the class as it was, and give the new one another name")


def default_of(field: Field, path: str) -> Any:
    """
    What a field holds that was not there when its object was kept; raises `CodecError` if it has no default.
    """
    if field.default is not None:
        return field.default()
    raise CodecError(f"{path} has a new field {field.name!r}, which older values lack; give it a default")


def tell_of(field: Field, path: str) -> None:
    """Have the log say that a class has a field which older values lack."""
    log.info("%s has a new field %r: values that were kept without have its default", path, field.name)


def _of_dataclass(field: dataclasses.Field[Any]) -> Field:
    factory: Any = field.default_factory
    if not isinstance(field.default, _Missing):
        factory = partial(_given, field.default)
    default = None if isinstance(factory, _Missing) else factory
    return Field(field.name, field.init or default is not None, default)


def _of_model(name: str, field: Any) -> Field:
    # one that looks at the fields before it has nothing to look at
    has_none = field.is_required() or getattr(field, "default_factory_takes_validated_data", False)
    default = None if has_none else partial(field.get_default, call_default_factory=True)
    return Field(name, True, default)


def _of_attrs(attribute: Any) -> Field:
    attr: Any = sys.modules["attr"]
    default: Callable[[], Any] | None = partial(_given, attribute.default)
    if attribute.default is attr.NOTHING:
        default = None
    elif isinstance(attribute.default, attr.Factory):
        # one that looks at the object has nothing to look at yet
        default = None if attribute.default.takes_self else attribute.default.factory
    return Field(attribute.name, attribute.init or default is not None, default)


def _given(value: Any) -> Any:
    return value
