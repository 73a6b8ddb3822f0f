"""
What users may pass, checked when a pipeline is built: one kind of check, one kind of message.

Each function takes the name under which the user knows the argument, and raises `PipelineError` saying
what was expected and what came.
"""

from __future__ import annotations

import dis
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from numbers import Real
from operator import itemgetter
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, TypeAlias, TypeVar

from asyncstream.errors import MissingField, PipelineError, safe_repr

__all__ = (
    "Duration",
    "Fields",
    "check_options",
    "choice",
    "count",
    "duration_ms",
    "duration_seconds",
    "fields_of",
    "file_path",
    "flag",
    "function",
    "instance",
    "instant_ms",
    "is_async_function",
    "named_fields",
    "overrides",
    "real_number",
    "refuse",
    "selector",
    "signed_ms",
    "takes",
    "text",
)

Duration: TypeAlias = timedelta | float
"""A length of time: a `timedelta`, or a number of seconds."""

Fields: TypeAlias = str | tuple[str, ...]
"""The name of a field, or of several: a key of a mapping, an attribute of anything else."""

E = TypeVar("E")


def refuse(
    name: str, expected: str, got: object, advice: str = "", *, classes: bool = False
) -> PipelineError:
    """
    The error for a wrong argument, to be raised by the caller.

    Args:
        advice: what to do, unless it is a mistake that is made everywhere (`_usual_mistake`).
        classes: a class may be right here, and is not the mistake.
    """
    advice = (not (classes and isinstance(got, type)) and _usual_mistake(got)) or advice
    ending = f"; {advice}" if advice else ""
    return PipelineError(f"{name}: expected {expected}, got {safe_repr(got)}{ending}")


def duration_seconds(name: str, value: object, *, zero: bool = False) -> float:
    """`value` (a `timedelta` or seconds) as seconds: positive and finite, or 0 where `zero` allows it."""
    length = _length(name, value)
    if isinstance(length, timedelta):
        seconds = length.total_seconds()
    else:
        seconds = float(length) if abs(length) < _LONGEST else math.inf
    if not 0 <= seconds < _LONGEST or (seconds == 0 and not zero):
        raise refuse(name, "a duration of at least 0" if zero else "a positive duration", value)
    return seconds


def duration_ms(name: str, value: object, *, zero: bool = False) -> int:
    """`value` (a `timedelta` or seconds) as whole milliseconds; anything finer is refused."""
    exact = duration_seconds(name, value, zero=zero) * 1000
    rounded = round(exact)
    if abs(exact - rounded) > 1e-6 + 1e-15 * exact or (rounded == 0 and not zero):
        raise refuse(name, "a whole number of milliseconds", value)
    return rounded


def signed_ms(name: str, value: object) -> int:
    """As `duration_ms`, of a length of time that may be negative or 0."""
    length = _length(name, value)
    is_negative = length < timedelta() if isinstance(length, timedelta) else length < 0
    return -duration_ms(name, -length, zero=True) if is_negative else duration_ms(name, length, zero=True)


def _length(name: str, value: object) -> Duration:
    """`value`, if it is of a kind that tells lengths of time."""
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float):
        raise refuse(name, "a timedelta or a number of seconds", value, "e.g. timedelta(minutes=5), or 300")
    return value


def instant_ms(value: object) -> int:
    """
    A point in time as milliseconds since the epoch.

    Raises:
        TypeError: if `value` is neither an int (milliseconds) nor an aware `datetime`.
        ValueError: if it is before or after all time.
    """
    if type(value) is int:
        if not -_TOO_MANY <= value < _TOO_MANY:
            raise ValueError(f"expected a timestamp of 64 bits (milliseconds), got {value}")
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise TypeError(
                f"a datetime needs a time zone to be a point in time, got {value!r}; if it is in UTC, "
                "value.replace(tzinfo=UTC)"
            )
        # not value.timestamp(): a float of seconds loses the last microseconds
        since = value - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    if isinstance(value, int) and not isinstance(value, bool):
        return instant_ms(int(value))
    advice = ""
    if isinstance(value, float):  # the usual one is what time.time() gives
        advice = "; for seconds use int(seconds * 1000)"
    elif isinstance(value, str):  # as every field of CSV is
        advice = "; for text use int(text), or datetime.fromisoformat(text)"
    elif isinstance(value, timedelta):
        advice = "; a length of time is added to one, as length // timedelta(milliseconds=1)"
    raise TypeError(
        f"a timestamp is an int (milliseconds since the epoch) or an aware datetime, got {safe_repr(value)}"
        + advice
    )


def count(name: str, value: object, *, least: int = 1, advice: str = "") -> int:
    """`value` as an int of at least `least`; `advice` is what to do if it is none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise refuse(name, f"an integer of at least {least}", value, advice)
    if value >= _TOO_MANY:
        raise refuse(name, "an integer below 2**63", value)
    return value


def real_number(name: str, value: object, expected: str, fits: Callable[[float], bool]) -> float:
    """`value` as a number for which `fits` is true; `expected` says which those are."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise refuse(name, expected, value)
    try:
        number = float(value)
    except OverflowError:
        number = math.nan  # of which nothing is true
    if not fits(number):
        raise refuse(name, expected, value)
    return number


def text(name: str, value: object) -> str:
    """`value`, which must be a non-empty `str` without line breaks and the like."""
    if not isinstance(value, str) or not value:
        raise refuse(name, "a non-empty text", value)
    if not value.isprintable():
        raise refuse(name, "a text of printable characters", value)
    return value


def file_path(name: str, value: object, what: str = "a file") -> str:
    """
    `value`, a path that a file system can have, as text.

    Args:
        what: is to be there, for the message.
    """
    given = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(given, str) or not given:
        raise refuse(name, f"the path of {what}", value)
    encoding = sys.getfilesystemencoding()
    try:
        is_possible = b"\0" not in os.fsencode(given)
    except UnicodeEncodeError:  # half a character; or one that the locale does not know
        is_possible = False
    if not is_possible:
        where = "" if encoding == "utf-8" else f" in {encoding}, which this locale asks for; set PYTHONUTF8=1"
        raise refuse(name, f"the path of {what}", value, f"no file can be called so{where}")
    return given


def flag(name: str, value: object) -> bool:
    """`value`, which must be True or False: of texts such as "false", each would count as true."""
    if not isinstance(value, bool):
        raise refuse(name, "True or False", value)
    return value


def choice(name: str, value: E, allowed: tuple[E, ...]) -> E:
    """`value`, which must be one of `allowed`."""
    # by type first: what an array says to == is neither true nor false
    if not any(isinstance(value, type(each)) and value == each for each in allowed):
        raise refuse(name, "one of " + ", ".join(map(repr, allowed)), value)
    return value


def function(
    name: str, value: object, *arguments: str, yields: bool = False, gives: bool = False
) -> Callable[..., Any]:
    """
    `value`, which must be a plain function: not an `async def`.

    Args:
        arguments: what it is called with, in order (`takes`).
        yields: it may be a generator function.
        gives: it is called for what it returns.
    """
    if not callable(value):
        raise refuse(name, "a function", value)
    if is_async_function(value) or _runs(value, inspect.isasyncgenfunction):
        advice = "it is called and not awaited; what awaits belongs in an async_map or async_flat_map"
        raise refuse(name, "a plain function", value, advice)
    if not yields and _runs(value, inspect.isgeneratorfunction):
        advice = "what yields several results belongs in a flat_map"
        raise refuse(name, "a function that returns", value, advice)
    if gives and _runs(value, _returns_nothing):
        raise refuse(name, "a function that returns something", value, _NO_RETURN)
    takes(name, value, *arguments)
    return value


def instance(
    name: str, value: object, base: type, *needs: str, advice: str = "", yields: bool = False, gives: str = ""
) -> Any:
    """
    `value`, which must be an instance of `base` with methods that can be used as its own (`overrides`).

    Args:
        base: declares the methods.
        needs: which of them `base` leaves to others.
        advice: what to give instead.
        yields: they may be generators.
        gives: which of them is called for what it returns.
    """
    if not isinstance(value, base):
        raise refuse(name, f"{'an' if base.__name__[0] in 'AE' else 'a'} {base.__name__}", value, advice)
    overrides(name, value, base, *needs, yields=yields)
    if gives and _runs(method := getattr(value, gives), _returns_nothing):
        raise refuse(f"{name}.{gives}", "a method that returns something", method, _NO_RETURN)
    return value


def overrides(name: str, value: object, base: type, *needs: str, yields: bool = False) -> None:
    """
    Refuse an object with a method that cannot be used as that of `base`: what is simply called there must
    not be `async def` nor yield, what is awaited there must not yield nor return nothing, and each must take
    what it is called with. So is one without a method that it is there for.

    A plain method that returns something is let pass where it is awaited: it may be a coroutine, as of one
    that calls another.

    Args:
        base: declares the methods.
        needs: which of them `base` leaves to others.
        yields: those that are simply called may be generators.
    """
    for attribute in dir(base):
        if attribute.startswith("_") or not isinstance(declared := getattr(base, attribute), FunctionType):
            continue
        method = getattr(value, attribute)
        if getattr(method, "__func__", None) is declared:  # it is the base's own
            if attribute in needs:
                raise refuse(name, f"one that overrides {attribute}", value)
            continue
        if (fault := _unlike(declared, method, yields=yields)) is not None:
            raise refuse(f"{name}.{attribute}", fault[0], method, fault[1])
        code = declared.__code__
        takes(f"{name}.{attribute}", method, *code.co_varnames[1 : code.co_argcount])


def _unlike(declared: object, method: object, *, yields: bool) -> tuple[str, str] | None:
    """What is expected of a method, and what to do, if it is awaited where it is called or the reverse."""
    runs_async, is_generator = is_async_function(method), _runs(method, inspect.isgeneratorfunction)
    is_async_generator = _runs(method, inspect.isasyncgenfunction)
    if not inspect.iscoroutinefunction(declared):
        if runs_async or is_async_generator:
            return "a plain method", "it is called, not awaited; await in an async_map before or after"
        if is_generator and not yields:
            emits = "out" in inspect.signature(declared).parameters  # type: ignore[arg-type]
            does = "emit with out(...)" if emits else "return what it gives"
            return "a method that does not yield", f"it is called, not iterated over; {does}"
    elif is_async_generator or is_generator:
        return "an async def that returns", "it is awaited, not iterated over"
    elif not runs_async and _runs(method, _returns_nothing):
        return "an async def", "it is awaited"
    return None


def _returns_nothing(function: object) -> bool:
    """Whether it is a function that returns, and None each time, as one without a `return` does."""
    code = getattr(function, "__code__", None)
    if type(code) is not CodeType or code.co_flags & inspect.CO_GENERATOR:
        return False
    returned, last = [], None
    for done in dis.get_instructions(code):
        if done.opname == "RETURN_CONST":
            returned.append(done.argval is None)
        elif done.opname == "RETURN_VALUE":
            is_none = last is not None and last.opname == "LOAD_CONST" and last.argval is None
            returned.append(is_none and not done.is_jump_target)  # or it is one of several values
        last = done
    return bool(returned) and all(returned)


def check_options(method: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse options by name that `method` does not have; `known` are those that it has."""
    for option in given:
        if option not in known:
            raise PipelineError(f"{method}: there is no option {option!r}; there are: {', '.join(known)}")


def takes(name: str, value: Callable[..., Any], *arguments: str) -> None:
    """
    Refuse a function, or a class, that cannot be called with so many arguments. One that does not tell what
    it takes, as many built-in ones do not, is let pass.

    Args:
        arguments: what they are, in order.
    """
    if isinstance(value, type) and type(value).__call__ is not type.__call__:
        return  # calling it is not what makes an instance
    of = value.__func__ if isinstance(value, MethodType) else value
    if isinstance(of, FunctionType):  # as nearly all are: a signature costs fifty times as much
        code, bound = of.__code__, of is not value
        if code.co_argcount == len(arguments) + bound and not code.co_kwonlyargcount:
            return
    expected = f"{name}: expected a function that takes ({', '.join(arguments)}), got"
    if (signature := _signature(value)) is None:
        # of a partial there is none, too, if its function does not take what it gives it
        if isinstance(value, partial) and (whole := _signature(value.func)) is not None:
            raise PipelineError(f"{expected} {safe_repr(value)} of one that takes {whole}")
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        of_none = "; it is a method: give that of an object, object.method"
        raise PipelineError(
            f"{expected} one that takes {signature}"
            + (of_none if next(iter(signature.parameters), "") == "self" else "")
        ) from None


def _signature(value: Callable[..., Any]) -> inspect.Signature | None:
    """What it takes itself, not what a decorator wraps, which may be given more; None: it does not tell."""
    ours = isinstance(value, type) and value.__module__.startswith("asyncstream.")  # wrapped by `Shown`
    try:
        return inspect.signature(value, follow_wrapped=ours)
    except (TypeError, ValueError):
        return None


def selector(name: str, value: object, *, yields: bool = False, gives: bool = False) -> Callable[[Any], Any]:
    """
    What of an element a step is about: a plain function of it, or the name of one of its fields.

    Args:
        name: of the argument.
        value: a function; the name of a field, which is a key of a mapping or an attribute of anything else;
            or several names, as a tuple, for the tuple of their values. A name is taken as it is: "a.b" is
            the field of that name, not a field of a field.
        yields: a generator function is one as well.
        gives: a function that returns nothing is none.

    Returns:
        A function of the element, which raises `MissingField` if it has no such field.
    """
    if isinstance(value, str):
        return _field(text(name, value))
    if isinstance(value, tuple):
        if not value:
            raise refuse(name, "a function, or at least one name of a field", value)
        return _several([_field(text(name, field)) for field in value])
    if not callable(value):
        raise refuse(name, "a function", value, "or the name of a field, or of several in a tuple")
    return function(name, value, "element", yields=yields, gives=gives)


def _field(name: str) -> Callable[[Any], Any]:
    def read(element: Any) -> Any:
        if type(element) is dict or isinstance(element, Mapping):
            try:
                return element[name]
            except KeyError:
                raise MissingField(name, element) from None
        try:
            return getattr(element, name)
        except AttributeError:
            if hasattr(type(element), name):  # it is there: a property of it failed
                raise
            raise MissingField(name, element) from None

    return read


def _several(readers: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    return lambda element: tuple([read(element) for read in readers])


def fields_of(fn: Callable[[Any], Any]) -> Fields | None:
    """
    The fields of a dict of which `fn` gives the value, or several as a tuple; None: it may do something else.

    Known are what `selector` makes of names, an `itemgetter`, and functions that are nothing but
    `lambda element: element["name"]`.
    """
    if type(fn) is itemgetter:
        items = fn.__reduce__()[1]
        if not all(type(item) is str for item in items):
            return None
        return items[0] if len(items) == 1 else items
    if type(fn) is not FunctionType:
        return None
    if (named := named_fields(fn)) is not None:
        return named
    code = fn.__code__
    for known in (_ITEM, _ITEM_TOLD_OF):
        if (code.co_code, code.co_argcount, code.co_kwonlyargcount) == (known.co_code, 1, 0):
            item = code.co_consts[known.co_consts.index("name")]
            return item if type(item) is str else None
    return None


def named_fields(fn: Callable[[Any], Any]) -> Fields | None:
    """The names that `selector` was given, one or several; None: it was given a function."""
    if type(fn) is not FunctionType or fn.__code__ not in (_READS_ONE, _READS_SEVERAL):
        return None
    (caught,) = fn.__closure__ or ()
    of = caught.cell_contents
    return of if isinstance(of, str) else tuple(str(named_fields(read)) for read in of)


def _usual_mistake(value: object) -> str:
    """The advice for a class or a call in place of what it makes, or a guard of nothing; else nothing."""
    if isinstance(value, type):
        return f"give an instance, {value.__name__}(...), not the class"
    if inspect.iscoroutine(value):
        return "give the function itself, without calling it, or await it before"
    if isinstance(value, partial) and isinstance(value.func, type):
        return f"it is still to be given its function: {safe_repr(value)}(fn)"
    return ""


def is_async_function(value: object) -> bool:
    """Whether `value` is known to give a coroutine: `async def`, a partial of one, an async `__call__`."""
    return _runs(value, inspect.iscoroutinefunction)


def _runs(value: object, test: Callable[[Any], bool]) -> bool:
    """Whether `test` holds for the function that calling `value` runs, as far as that can be seen."""
    while isinstance(value, partial):
        value = value.func
    # the method itself, not whether there is one; calling a class runs no method of its instances
    of_class = None if isinstance(value, type) else getattr(type(value), "__call__", None)  # noqa: B004
    return any(test(one) and not _is_mocked(one) for one in (value, of_class))


def _is_mocked(function: object) -> bool:
    """Whether it is a mock that passes for a function, and answers any question with yes."""
    return not isinstance(getattr(getattr(function, "__code__", None), "co_flags", 0), int)


_NO_RETURN = "it gives None each time, as one without a return does"

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")

_TOO_MANY = 2**63  # more than can be counted where a count has 64 bits, or is a float

_LONGEST = 2**63 / 1000  # seconds: what is left of the milliseconds after the epoch


def _item(element: Any) -> Any:
    """A docstring is a constant of its function."""
    return element["name"]


_READS_ONE: Final[CodeType] = _field("").__code__
_READS_SEVERAL: Final[CodeType] = _several([]).__code__
_ITEM: Final[CodeType] = (lambda element: element["name"]).__code__
_ITEM_TOLD_OF: Final[CodeType] = _item.__code__
