"""
Aggregates by name: `Aggregates(n=Count(), total=Sum("amount"), mean=Mean(lambda order: order.amount))`.

Each takes the name of a field (of a mapping or an object), or a function of the element, or nothing for
the element itself; and each is an `AggregateFunction`, so it may stand alone or be combined, also with
ones of your own. All merge, so that sessions can use them. As in SQL, a field that is None does not count,
and an aggregate that has seen nothing gives None (a count gives 0); `First`, `Last` and `Collect` alone
take None as a value like any other.

Those whose result does not depend on the order of the elements are marked `order_free`: sliding windows
share their work. Some are so for some values only: a sum, for integers, but not for floats, whose last digits
hang on it, nor for texts. With the first of these, sliding windows share no more (`is_order_free`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final, TypeAlias, TypeVar

from asyncstream.errors import MissingExtra
from asyncstream.state.schema import attributes
from asyncstream.validation import Fields, plain_methods, refuse, selector
from asyncstream.windowing.functions import AggregateFunction, can_merge
from asyncstream.windowing.fused import CALLED, Inline, fused

__all__ = (
    "ELEMENTS",
    "ELEMENTS_OF_SESSIONS",
    "Aggregates",
    "Collect",
    "Count",
    "CountDistinct",
    "Field",
    "FieldAggregate",
    "First",
    "InPlace",
    "Last",
    "Max",
    "Mean",
    "Min",
    "Quantile",
    "Sum",
    "in_place",
)

Out = TypeVar("Out")

Field: TypeAlias = Fields | Callable[[Any], Any] | None
"""What of an element counts: the fields of these names, what the function gives, or the element itself."""


class FieldAggregate(AggregateFunction[Any, Out]):
    """
    Base of the aggregates of one field.

    Attributes:
        of: which field.
    """

    def __init__(self, of: Field = None) -> None:
        self.of = of
        self.value_of = _reader(of)

    def state_schema(self) -> Any:
        return attributes(self, without=("value_of",))


class Count(FieldAggregate[int]):
    """
    How many elements; of a field: how many have it other than None.

    Args:
        of: a function of the element, or the name of a field, that gives what to work on; None: the
            element.
    """

    order_free = True

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: Any) -> int:
        if self.of is None:
            return accumulator + 1
        return accumulator if self.value_of(value) is None else accumulator + 1

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def result(self, accumulator: int) -> int:
        return accumulator


class Sum(FieldAggregate[Any]):
    """
    The sum, of whatever can be added to others of its kind.

    Args:
        of: a function of the element, or the name of a field, that gives what to work on; None: the
            element.
    """

    order_free = True

    def is_order_free(self, value: Any) -> bool:
        return _adds_exactly(self.value_of(value))

    def holds_order_free(self, accumulator: Any) -> bool:
        return _adds_exactly(accumulator)

    def create(self) -> Any:
        return None

    def add(self, accumulator: Any, value: Any) -> Any:
        part = self.value_of(value)
        if accumulator is None:
            return part
        return accumulator if part is None else accumulator + part

    def merge(self, accumulator: Any, other: Any) -> Any:
        if accumulator is None:
            return other
        return accumulator if other is None else accumulator + other

    def result(self, accumulator: Any) -> Any:
        return accumulator


class Mean(FieldAggregate[Any]):
    """
    The arithmetic mean.

    Args:
        of: a function of the element, or the name of a field, that gives what to work on; None: the
            element.
    """

    order_free = True

    def is_order_free(self, value: Any) -> bool:
        return _adds_exactly(self.value_of(value))

    def holds_order_free(self, accumulator: tuple[int, Any]) -> bool:
        return _adds_exactly(accumulator[1])

    def create(self) -> tuple[int, Any]:
        return (0, 0)

    def add(self, accumulator: tuple[int, Any], value: Any) -> tuple[int, Any]:
        part = self.value_of(value)
        return accumulator if part is None else (accumulator[0] + 1, accumulator[1] + part)

    def merge(self, accumulator: tuple[int, Any], other: tuple[int, Any]) -> tuple[int, Any]:
        return (accumulator[0] + other[0], accumulator[1] + other[1])

    def result(self, accumulator: tuple[int, Any]) -> Any:
        count, total = accumulator
        return total / count if count else None


class _Extreme(FieldAggregate[Any]):
    """The value that beats all others, None aside."""

    order_free = True
    beats: Callable[[Any, Any], Any]

    def is_order_free(self, value: Any) -> bool:
        return _has_no_double(self.value_of(value))

    def holds_order_free(self, accumulator: Any) -> bool:
        return _has_no_double(accumulator)

    def create(self) -> Any:
        return None

    def add(self, accumulator: Any, value: Any) -> Any:
        return self.merge(accumulator, self.value_of(value))

    def merge(self, accumulator: Any, other: Any) -> Any:
        if accumulator is None:
            return other
        return other if other is not None and self.beats(other, accumulator) else accumulator

    def result(self, accumulator: Any) -> Any:
        return accumulator


class Min(_Extreme):
    """
    The smallest.

    Args:
        of: a function of the element, or the name of a field, that gives what to work on; None: the
            element.
    """

    beats = staticmethod(operator.lt)


class Max(_Extreme):
    """
    The largest.

    Args:
        of: a function of the element, or the name of a field, that gives what to work on; None: the
            element.
    """

    beats = staticmethod(operator.gt)


class First(FieldAggregate[Any]):
    """
    The one that came first; of merged sessions, that of the earlier session.

    Args:
        of: a function of the element, or the name of a field, that gives what to work on; None: the
            element.
    """

    joins_in_order = True

    def create(self) -> tuple[Any, ...]:
        return ()

    def add(self, accumulator: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
        return accumulator or (self.value_of(value),)

    def merge(self, accumulator: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return accumulator or other

    def result(self, accumulator: tuple[Any, ...]) -> Any:
        return accumulator[0] if accumulator else None


class Last(FieldAggregate[Any]):
    """
    The one that came last; of merged sessions, that of the later session.

    Args:
        of: a function of the element, or the name of a field, that gives what to work on; None: the
            element.
    """

    joins_in_order = True

    def create(self) -> tuple[Any, ...]:
        return ()

    def add(self, accumulator: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
        return (self.value_of(value),)

    def merge(self, accumulator: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return other or accumulator

    def result(self, accumulator: tuple[Any, ...]) -> Any:
        return accumulator[0] if accumulator else None


class Collect(FieldAggregate[list[Any]]):
    """
    All of them in a list, in order of arrival; those of merged sessions one session after the other.

    Args:
        of: a function of the element, or the name of a field, that gives what to work on; None: the
            element.
    """

    joins_in_order = True

    def create(self) -> list[Any]:
        return []

    def add(self, accumulator: list[Any], value: Any) -> list[Any]:
        accumulator.append(self.value_of(value))
        return accumulator

    def merge(self, accumulator: list[Any], other: list[Any]) -> list[Any]:
        accumulator.extend(other)
        return accumulator

    def result(self, accumulator: list[Any]) -> list[Any]:
        return list(accumulator)


class _OfSessions(Collect):
    """The elements of a session that nothing folds: where sessions merge, the one with most comes first."""

    def merge(self, accumulator: list[Any], other: list[Any]) -> list[Any]:
        if len(other) > len(accumulator):
            return [*other, *accumulator]
        accumulator.extend(other)
        return accumulator


class CountDistinct(FieldAggregate[int]):
    """
    How many different ones, exactly: the window holds each of them once. They must be hashable.

    Args:
        of: a function of the element, or the name of a field, that gives what to work on; None: the
            element.
    """

    order_free = True

    def create(self) -> set[Any]:
        return set()

    def add(self, accumulator: set[Any], value: Any) -> set[Any]:
        part = self.value_of(value)
        if part is not None:
            accumulator.add(part)
        return accumulator

    def merge(self, accumulator: set[Any], other: set[Any]) -> set[Any]:
        accumulator |= other
        return accumulator

    def result(self, accumulator: set[Any]) -> int:
        return len(accumulator)


class Quantile(FieldAggregate[float | None]):
    """
    The number below which the given share of all numbers lies, to about a percent of rank: a KLL sketch.

    Memory does not grow with the window. The sketch draws lots, so two runs may differ within its error.

    Args:
        of: a function of the element, or the name of a field, that gives what to work on; None: the
            element.

    Attributes:
        share: from 0 (the smallest) over 0.5 (the median) to 1 (the largest).
        k: size of the sketch; twice the size halves the error.

    Raises:
        MissingExtra: if the package `datasketches` is not installed.
    """

    def __init__(self, share: float, of: Field = None, *, k: int = 200) -> None:
        super().__init__(of)
        if type(share) not in (int, float) or not 0 <= share <= 1:
            raise refuse("share", "a number from 0 to 1", share)
        if type(k) is not int or not 8 <= k <= 65535:
            raise refuse("k", "an integer from 8 to 65535", k)
        self.share = share
        self.k = k
        self._sketch = _sketch_type()

    def create(self) -> Any:
        return self._sketch(self.k)

    def add(self, accumulator: Any, value: Any) -> Any:
        part = self.value_of(value)
        if part is not None:
            accumulator.update(part)
        return accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:
        accumulator.merge(other)
        return accumulator

    def result(self, accumulator: Any) -> float | None:
        return None if accumulator.is_empty() else accumulator.get_quantile(self.share)

    def save(self, accumulator: Any) -> bytes:
        saved: bytes = accumulator.serialize()
        return saved

    def load(self, kept: bytes) -> Any:
        return self._sketch.deserialize(kept)


class Aggregates(AggregateFunction[Any, dict[str, Any]]):
    """
    Several aggregates over the same elements; the result is a dict with the result of each by its name.

    Attributes:
        parts: the aggregates by name.
        order_free: whether all of them are.
    """

    def __init__(self, **parts: AggregateFunction[Any, Any]) -> None:
        if not parts:
            raise refuse("aggregates", "at least one, such as n=Count()", parts)
        for name, part in parts.items():
            if not isinstance(part, AggregateFunction):
                raise refuse(name, "an aggregate, such as Count()", part)
            plain_methods(name, part, AggregateFunction)
            if not can_merge(part):
                raise refuse(name, "an aggregate that overrides merge", part)
        self.parts = parts
        self.order_free = all(part.order_free for part in parts.values())
        self.joins_in_order = all(part.order_free or part.joins_in_order for part in parts.values())
        one: Any = fused({name: (part, _inline(part)) for name, part in parts.items()})
        self.create = one.create  # type: ignore[method-assign]
        self.add = one.add  # type: ignore[method-assign]
        self.add_order_free = one.add_order_free  # type: ignore[method-assign]
        self.add_each: Callable[[Sequence[list[Any]], Any], Any] = one.add_each
        self.merge = one.merge  # type: ignore[method-assign]
        self.result = one.result  # type: ignore[method-assign]
        self.save = one.save  # type: ignore[method-assign]
        self.load = one.load  # type: ignore[method-assign]

    def is_order_free(self, value: Any) -> bool:
        return all(part.is_order_free(value) for part in self.parts.values())

    def holds_order_free(self, accumulator: list[Any]) -> bool:
        parts = zip(self.parts.values(), accumulator, strict=True)
        return all(part.holds_order_free(held) for part, held in parts)

    def __reduce__(self) -> Any:
        return _aggregates, (self.parts,)


class InPlace(AggregateFunction[Any, Any]):
    """
    One aggregate with its accumulator in a list, so that `add` changes it where it is.

    Snapshots hold the accumulator alone.

    Attributes:
        add_each: adds one element to each accumulator of a row, and gives the row.
    """

    def __init__(self, aggregate: AggregateFunction[Any, Any]) -> None:
        self._one = aggregate
        self.order_free = aggregate.order_free
        self.joins_in_order = aggregate.joins_in_order
        one: Any = fused({"": (aggregate, _inline(aggregate))})
        self.create = one.create  # type: ignore[method-assign]
        self.add = one.add  # type: ignore[method-assign]
        self.add_order_free = one.add_order_free  # type: ignore[method-assign]
        self.merge = one.merge  # type: ignore[method-assign]
        self.add_each: Callable[[Sequence[list[Any]], Any], Any] = one.add_each

    def result(self, accumulator: list[Any]) -> Any:
        return self._one.result(accumulator[0])

    def save(self, accumulator: list[Any]) -> Any:
        return self._one.save(accumulator[0])

    def load(self, kept: Any) -> list[Any]:
        return [self._one.load(kept)]

    def holds_order_free(self, accumulator: list[Any]) -> bool:
        return self._one.holds_order_free(accumulator[0])


def in_place(aggregate: AggregateFunction[Any, Any]) -> Aggregates | InPlace:
    """`aggregate`, with its accumulators in lists, of which it looks at its own parts only."""
    return aggregate if isinstance(aggregate, Aggregates) else InPlace(aggregate)


_COUNT = Inline(create="0", add="{held} += 1", merge="{held} += {other}")

_INLINE: dict[type, Inline] = {
    Sum: Inline(
        create="None",
        add="""\
_value = {field}
if _value is not None:
    {held} = _value if {held} is None else {held} + _value""",
        merge="""\
if {other} is not None:
    {held} = {other} if {held} is None else {held} + {other}""",
        free="type({given}) is int or {part}.is_order_free(value)",
    ),
    Mean: Inline(
        create="(0, 0)",
        add="""\
_value = {field}
if _value is not None:
    _count, _total = {held}
    {held} = (_count + 1, _total + _value)""",
        merge="{held} = ({held}[0] + {other}[0], {held}[1] + {other}[1])",
        result="{part}.result({held})",
        free="type({given}) is int or {part}.is_order_free(value)",
    ),
    First: Inline(
        create="()",
        add="if not {held}:\n    {held} = ({field},)",
        merge="{held} = {held} or {other}",
        result="{held}[0] if {held} else None",
    ),
    Last: Inline(
        create="()",
        add="{held} = ({field},)",
        merge="{held} = {other} or {held}",
        result="{held}[0] if {held} else None",
    ),
    Collect: Inline(
        create="[]",
        add="{held}.append({field})",
        merge="{held}.extend({other})",
        result="list({held})",
    ),
    Min: Inline(
        create="None",
        add="""\
_value = {field}
if _value is not None and ({held} is None or _value < {held}):
    {held} = _value""",
        merge="""\
if {other} is not None and ({held} is None or {other} < {held}):
    {held} = {other}""",
        free="type({given}) is int or {part}.is_order_free(value)",
    ),
    Max: Inline(
        create="None",
        add="""\
_value = {field}
if _value is not None and ({held} is None or _value > {held}):
    {held} = _value""",
        merge="""\
if {other} is not None and ({held} is None or {other} > {held}):
    {held} = {other}""",
        free="type({given}) is int or {part}.is_order_free(value)",
    ),
}


def _adds_exactly(value: Any) -> bool:
    """Whether sums with it are the same however they are grouped: not those of floats, nor of texts."""
    return value is None or type(value) in (int, bool, Fraction)


def _has_no_double(value: Any) -> bool:
    """
    Whether nothing that equals it differs from it, as 1 and 1.0 do, of which the first is kept.

    Nor is it a NaN, which wins where it comes first and nowhere else.
    """
    kind = type(value)
    return kind is int or value is None or (kind is float and value == value and not value.is_integer())


def _aggregates(parts: dict[str, AggregateFunction[Any, Any]]) -> Aggregates:
    return Aggregates(**parts)


def _inline(part: AggregateFunction[Any, Any]) -> Inline:
    """What the methods of exactly this class do."""
    if type(part) is Count and part.of is None:
        return _COUNT
    return _INLINE.get(type(part), CALLED)


def _reader(of: Field) -> Callable[[Any], Any]:
    """The function that reads a field."""
    return _itself if of is None else selector("of", of)


def _itself(value: Any) -> Any:
    return value


def _sketch_type() -> Any:
    try:
        import datasketches  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise MissingExtra("Quantile", "sketch") from error
    return datasketches.kll_doubles_sketch


ELEMENTS: Final = Collect()
"""Folds elements into the list of all, where there is no other aggregate."""

ELEMENTS_OF_SESSIONS: Final = _OfSessions()
"""The same for windows that merge."""
