"""
Elements and state as bytes: by pickle, with the classes of a script or notebook inside.

Pickle writes the name of a class, and a worker looks it up in its modules. Classes of `__main__`, or made
within a function, are in none. So where pickle gives up, such classes are written out, as PySpark does with
those that a function refers to; a process that knows one already goes on with that, for as long as the same
driver runs. Functions by themselves are still refused: an element is data.

State outlives its driver. The next one runs the same script, and has classes of the same names that are not
the same classes: no key of the one would equal a key of the other. So what was written out is read as the
class of that name which the plan's functions refer to, if there is one. And a class may have other fields by
then, so objects are kept by the names of these.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Final

from asyncstream.codec.records import by_name

__all__ = ("Classes", "classes_in", "dumps", "dumps_state", "loads", "loads_each", "written_out")

Classes = Mapping[tuple[str, str], type]
"""Classes that workers cannot look up, by module and qualified name."""


MOVED: Final = {"asyncstream.runtime.spark.keyed": "asyncstream.runtime.spark.worker.group_head"}
"""Modules whose classes the state of 0.2.0 names, and where those are by now."""


def dumps(value: Any) -> bytes:
    """
    The bytes of which `loads` makes an equal value, in any worker.

    Raises:
        Exception: whatever pickling raises.
    """
    try:
        return pickle.dumps(value, 5)
    except Exception:
        return _by_value(value, lambda part: None)


def dumps_state(value: Any) -> bytes:
    """The same for a program whose classes may have other fields than those of this one."""
    file = io.BytesIO()
    try:
        _ByName(file, 5).dump(value)
    except Exception:
        return _by_value(value, by_name)
    return file.getvalue()


class _ByName(pickle.Pickler):
    def reducer_override(self, part: Any) -> Any:
        return by_name(part) or NotImplemented


def _by_value(value: Any, reduced: Callable[[Any], tuple[Any, ...] | None]) -> bytes:
    """The bytes with classes inside; `reduced` says of some parts how they are to be made."""
    from pyspark import cloudpickle

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
        has_class = False

        def reducer_override(self, part: Any) -> Any:
            if isinstance(part, type):
                self.has_class = True
                if _is_nowhere(part):
                    return _class_named, (part.__module__, part.__qualname__, written_out(part))
            elif isinstance(part, FunctionType) and not self.has_class:
                return NotImplemented  # pickle's own way, which refuses it
            return reduced(part) or super().reducer_override(part)

    file = io.BytesIO()
    ByValue(file, 5).dump(value)
    return file.getvalue()


def written_out(value: object) -> bytes:
    """
    The bytes of which `pickle.loads` makes the functions and classes in `value` anew, as PySpark would.

    PySpark has a class that stands in another forget that: `Shop.Order` would be `Order`, in what it is shown
    as, and where the class of that name is looked for.
    """
    from pyspark import cloudpickle

    class Named(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, part: Any) -> Any:
            reduced = super().reducer_override(part)
            if isinstance(part, type) and _is_nowhere(part):
                attributes, _ = reduced[2]
                attributes["__qualname__"] = part.__qualname__
            return reduced

    file = io.BytesIO()
    Named(file, 5).dump(value)
    return file.getvalue()


def loads(data: bytes, classes: Classes | None = None) -> Any:
    """
    What `dumps` was given; `classes` are those of the program that runs now, for what another run of it has
    written.
    """
    with _present(classes or {}):
        try:
            return pickle.loads(data)
        except ModuleNotFoundError:
            return _OfBefore(io.BytesIO(data)).load()


class _OfBefore(pickle.Unpickler):
    """Knows where classes are that have moved."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(MOVED.get(module, module), name)


def loads_each(data: bytes, classes: Classes | None = None) -> Iterator[Any]:
    """What `dumps` was given, one value after the other, if what it gave has been put together."""
    file = io.BytesIO(data)
    while file.tell() < len(data):
        with _present(classes or {}):
            value = pickle.load(file)
        yield value


def classes_in(value: object) -> Classes:
    """The classes that the functions in `value` refer to and that no module has; none of two of one name."""
    from pyspark.cloudpickle import Pickler

    found: dict[tuple[str, str], dict[int, type]] = {}

    class Collecting(Pickler):  # type: ignore[misc]
        def reducer_override(self, part: Any) -> Any:
            if isinstance(part, type) and _is_nowhere(part):
                # one with slots is made of one without, of the same fields, to which methods still refer
                identity = id(part.__dict__.get("__dataclass_fields__", part))
                found.setdefault((part.__module__, part.__qualname__), {}).setdefault(identity, part)
            return super().reducer_override(part)

    try:
        Collecting(io.BytesIO(), 5).dump(value)
    except Exception:  # Spark will say what cannot be pickled
        return {}
    return {name: kind for name, kinds in found.items() for kind in kinds.values() if len(kinds) == 1}


def _is_nowhere(kind: type) -> bool:
    """Whether a worker that looks for the class does not find it."""
    from pyspark.cloudpickle.cloudpickle import _should_pickle_by_reference

    return kind.__module__ != "builtins" and not _should_pickle_by_reference(kind)


_classes: Classes = {}


@contextmanager
def _present(classes: Classes) -> Iterator[None]:
    global _classes
    _classes, before = classes, _classes
    try:
        yield
    finally:
        _classes = before


def _class_named(module: str, name: str, written_out: bytes) -> Any:
    found = _classes.get((module, name))
    return pickle.loads(written_out) if found is None else found
