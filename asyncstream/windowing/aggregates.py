"""
Aggregates by name: `Aggregates(n=Count(), total=Sum("amount"), mean=Mean(lambda order: order.amount))`.

Each takes the name of a field (of a mapping or an object), or a function of the element, or nothing for
the element itself; and each is an `AggregateFunction`, so it may stand alone or be combined, also with
ones of your own. All merge, so that sessions can use them. As in SQL, a field that is None does not count,
and an aggregate that has seen nothing gives None (a count gives 0); `First`, `Last` and `Collect` alone
take None as a value like any other.

What a built-in one does is declared in its `does`, from which `fused_aggregates` makes its methods.

Those whose result does not depend on the order of the elements are marked `order_free`: sliding windows
share their work. Some are so for some values only: a sum, for integers, but not for floats, whose last digits
hang on it, nor for texts. With the first of these, sliding windows share no more (`is_order_free`). Where the
last digit does not matter, `exact=False` has floats shared, too.
"""

from __future__ import annotations

import copyreg
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial, reduce
from itertools import chain
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from asyncstream.errors import module_of
from asyncstream.state.rows import Rows, same
from asyncstream.state.schema import attributes
from asyncstream.validation import Fields, flag, instance, refuse, selector
from asyncstream.windowing.functions import FOLDING, AggregateFunction, can_merge
from asyncstream.windowing.fused_aggregates import Inline, Results, fused, methods

__all__ = (
    "ELEMENTS",
    "Adding",
    "Aggregates",
    "Collect",
    "Count",
    "CountDistinct",
    "Elements",
    "Extreme",
    "Field",
    "FieldAggregate",
    "First",
    "InPlace",
    "Last",
    "Max",
    "Mean",
    "Min",
    "Ordering",
    "Quantile",
    "Sum",
    "in_place",
    "joined",
)

Out = TypeVar("Out")

Field: TypeAlias = Fields | Callable[[Any], Any] | None
"""What of an element counts: the fields of these names, what the function gives, or the element itself."""


class FieldAggregate(AggregateFunction[Any, Out]):
    """
    Base of the aggregates of one field.

    Attributes:
        of: the field, as it was given.
        value_of: gives its value of an element.
        does: of a class that does not write its methods, what they do.
    """

    does: ClassVar[Inline]

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "does" in vars(cls):
            for name, method in methods(cls.does).items():
                setattr(cls, name, method)

    def __init__(self, of: Field = None) -> None:
        self.of = of
        self.value_of = same if of is None else selector("of", of)

    def state_schema(self) -> Any:
        return attributes(self, without=("exact", "value_of"))


class Count(FieldAggregate[int]):
    """
    How many elements; of a field: how many have it other than None.

    Args:
        of: the name of a field, or a function of the element; None: the element itself.
    """

    order_free = True
    does = Inline(
        create="0",
        add="if {field} is not None:\n    {accumulator} += 1",
        merge="{accumulator} += {other}",
        add_whole="{accumulator} += 1",
    )


class Ordering(FieldAggregate[Any]):
    """
    Base of aggregates for which the order of some values matters, such as floats.

    Attributes:
        exact: whether the result is to the last digit that of the elements in their order. False: floats are
            taken in any order, so that windows that overlap share their work, and Spark combines rows early.
        free_if_inexact: of a class, where the order of a value that is `{given}` does not matter then.
    """

    order_free = True
    free_if_inexact: ClassVar[str]

    def __init__(self, of: Field = None, *, exact: bool = True) -> None:
        super().__init__(of)
        self.exact = flag("exact", exact)

    def is_order_free(self, value: Any) -> bool:
        return self._is_free(self.value_of(value))

    def holds_order_free(self, accumulator: Any) -> bool:
        return self._is_free(accumulator)

    @abstractmethod
    def _is_free(self, value: Any) -> bool:
        """Whether the order of a value does not matter."""


class Adding(Ordering):
    """Adds values up."""

    free_if_inexact = "type({given}) is int or type({given}) is float"

    def _is_free(self, value: Any) -> bool:
        # sums of floats, and of texts, are not the same however they are grouped
        is_exact = value is None or type(value) in (int, bool, Fraction)
        return is_exact or (not self.exact and isinstance(value, float))


class Sum(Adding):
    """
    The sum, of whatever can be added to others of its kind.

    Args:
        of: the name of a field, or a function of the element; None: the element itself.
        exact: False: floats may be added in any order, so the last digit may be another one, and windows that
            overlap share their work.
    """

    does = Inline(
        create="None",
        add="""\
_value = {field}
if _value is not None:
    {accumulator} = _value if {accumulator} is None else {accumulator} + _value""",
        merge="""\
if {other} is not None:
    {accumulator} = {other} if {accumulator} is None else {accumulator} + {other}""",
    )


class Mean(Adding):
    """
    The arithmetic mean.

    Args:
        of: the name of a field, or a function of the element; None: the element itself.
        exact: as for `Sum`.
    """

    does = Inline(
        create="(0, 0)",
        add="""\
_value = {field}
if _value is not None:
    _count, _total = {accumulator}
    {accumulator} = (_count + 1, _total + _value)""",
        merge="{accumulator} = ({accumulator}[0] + {other}[0], {accumulator}[1] + {other}[1])",
        result="{accumulator}[1] / {accumulator}[0] if {accumulator}[0] else None",
    )

    def holds_order_free(self, accumulator: tuple[int, Any]) -> bool:
        return self._is_free(accumulator[1])


class Extreme(Ordering):
    """The value that beats all others, None aside."""

    free_if_inexact = "type({given}) is int or (type({given}) is float and {given} == {given})"

    def _is_free(self, value: Any) -> bool:
        if not isinstance(value, float):
            return value is None or type(value) is int
        # of 1.0 and 1, which are equal, the first is kept; NaN wins where it comes first and nowhere else
        return value == value and (not self.exact or (type(value) is float and not value.is_integer()))


def _beating(beats: str) -> Inline:
    """What an extreme does of which each value `beats` those before it."""
    taken = (
        f"if {{new}} is not None and ({{accumulator}} is None or {{new}} {beats} {{accumulator}}):\n"
        "    {accumulator} = {new}"
    )
    return Inline(
        create="None",
        add="_value = {field}\n" + taken.replace("{new}", "_value"),
        merge=taken.replace("{new}", "{other}"),
    )


class Min(Extreme):
    """
    The smallest.

    Args:
        of: the name of a field, or a function of the element; None: the element itself.
        exact: False: of values that are equal and differ, such as 1 and 1.0, any may come out, and windows
            that overlap share their work. By default it is the first, also where all are floats.
    """

    does = _beating("<")


class Max(Extreme):
    """
    The largest.

    Args:
        of: the name of a field, or a function of the element; None: the element itself.
        exact: False: of values that are equal and differ, such as 1 and 1.0, any may come out, and windows
            that overlap share their work. By default it is the first, also where all are floats.
    """

    does = _beating(">")


class First(FieldAggregate[Any]):
    """
    The one that came first; of merged sessions, that of the earlier session.

    Args:
        of: the name of a field, or a function of the element; None: the element itself.
    """

    joins_in_order = True
    does = Inline(
        create="()",
        add="if not {accumulator}:\n    {accumulator} = ({field},)",
        merge="{accumulator} = {accumulator} or {other}",
        result="{accumulator}[0] if {accumulator} else None",
    )


class Last(FieldAggregate[Any]):
    """
    The one that came last; of merged sessions, that of the later session.

    Args:
        of: the name of a field, or a function of the element; None: the element itself.
    """

    joins_in_order = True
    does = Inline(
        create="()",
        add="{accumulator} = ({field},)",
        merge="{accumulator} = {other} or {accumulator}",
        result="{accumulator}[0] if {accumulator} else None",
    )


class Collect(FieldAggregate[list[Any]]):
    """
    All of them in a list, in order of arrival; of merged sessions, those of the earlier session first.

    Args:
        of: the name of a field, or a function of the element; None: the element itself.
    """

    joins_in_order = True
    does = Inline(
        create="[]",
        add="{accumulator}.append({field})",
        merge="{accumulator}.extend({other})",
        result="list({accumulator})",
        copy="list({other})",
    )


class Elements(Collect):
    """The elements of a window that nothing folds, in a list that tables hold as it is."""

    does = Collect.does._replace(add="{accumulator}.append(value)")

    def add_each(self, row: Sequence[list[Any]], value: Any) -> Sequence[list[Any]]:
        """As of `InPlace`."""
        for accumulator in row:
            accumulator.append(value)
        return row

    def save(self, accumulator: list[Any]) -> list[Any]:
        return accumulator

    def load(self, kept: list[Any]) -> list[Any]:
        return kept


class CountDistinct(FieldAggregate[int]):
    """
    How many different ones, exactly: the window holds each of them once. They must be hashable.

    All floats that are not a number count as one, as in SQL, though none equals another.

    Args:
        of: the name of a field, or a function of the element; None: the element itself.
    """

    order_free = True
    does = Inline(
        create="set()",
        add="""\
_value = {field}
if _value is not None:
    {accumulator}.add(None if isinstance(_value, float) and _value != _value else _value)""",
        merge="{accumulator} |= {other}",
        result="len({accumulator})",
        copy="set({other})",
    )

    def load(self, kept: set[Any]) -> set[Any]:
        return {None if isinstance(value, float) and value != value else value for value in kept}


class Quantile(FieldAggregate[float | None]):
    """
    The number below which the given share of all numbers lies, to about a percent of rank: a KLL sketch.

    Memory does not grow with the window. The sketch draws lots, so two runs may differ within its error.

    Args:
        of: the name of a field, or a function of the element; None: the element itself.

    Attributes:
        share: from 0 (the smallest) over 0.5 (the median) to 1 (the largest).
        k: size of the sketch; twice the size halves the error.

    Raises:
        MissingExtra: if the package `datasketches` is not installed.
    """

    does = Inline(
        create="{part}._sketch({part}.k)",
        add="_value = {field}\nif _value is not None:\n    {accumulator}.update(_value)",
        merge="{accumulator}.merge({other})",
        result="None if {accumulator}.is_empty() else {accumulator}.get_quantile({part}.share)",
        copy="{part}.merge({part}.create(), {other})",
    )

    def __init__(self, share: float, of: Field = None, *, k: int = 200) -> None:
        super().__init__(of)
        if type(share) not in (int, float) or not 0 <= share <= 1:
            raise refuse("share", "a number from 0 to 1", share)
        if type(k) is not int or not 8 <= k <= 65535:
            raise refuse("k", "an integer from 8 to 65535", k)
        self.share = share
        self.k = k
        self._sketch = module_of("sketch", "datasketches", "Quantile").kll_doubles_sketch
        # so that it can be copied, and be brought to disk
        copyreg.pickle(self._sketch, lambda sketch: (_sketch_of, (sketch.serialize(),)))

    def save(self, accumulator: Any) -> bytes:
        saved: bytes = accumulator.serialize()
        return saved

    def load(self, kept: bytes) -> Any:
        return self._sketch.deserialize(kept)


def _sketch_of(kept: bytes) -> Any:
    return module_of("sketch", "datasketches", "Quantile").kll_doubles_sketch.deserialize(kept)


class InPlace(AggregateFunction[Any, Any]):
    """
    Aggregates with their accumulators in a list, so that `add` changes it where it is; its methods are fused.

    Attributes:
        parts: the aggregates by name; one alone has the name None, and snapshots hold its accumulator alone.
        order_free: whether all of them are.
        add_order_free: `add`; raises `OrderMatters` for an element that may not change its place.
        add_each: adds one element to each accumulator of a row, and gives the row.
        add_all: adds several elements, in their order, to one accumulator.
        gather: merges accumulators by key, behind each of which stands a number, into those that were found
            before; of a key that comes for the first time it takes what there is, which it copies when the
            key comes again.
        results: see there.
    """

    add_order_free: Callable[[list[Any], Any], list[Any]]
    add_each: Callable[[Sequence[list[Any]], Any], Any]
    add_all: Callable[[list[Any], Iterable[Any]], list[Any]]
    gather: Callable[[Rows, Rows], None]
    results: Results

    def __init__(self, parts: Mapping[Any, AggregateFunction[Any, Any]]) -> None:
        self.parts = parts
        self.order_free = all(part.order_free for part in parts.values())
        self.joins_in_order = all(part.order_free or part.joins_in_order for part in parts.values())
        vars(self).update(fused(parts))

    def is_order_free(self, value: Any) -> bool:
        return all(part.is_order_free(value) for part in self.parts.values())

    def holds_order_free(self, accumulator: list[Any]) -> bool:
        parts = zip(self.parts.values(), accumulator, strict=False)  # perhaps with a number behind
        return all(part.holds_order_free(accumulator) for part, accumulator in parts)

    def state_schema(self) -> Any:
        return attributes(self, without=("gather", "results", "add_all"))

    def __reduce__(self) -> Any:
        return InPlace, (self.parts,)


class Aggregates(InPlace):
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
            instance(name, part, AggregateFunction, *FOLDING, advice="such as Count()", gives="add")
            if not can_merge(part):
                raise refuse(name, "an aggregate that overrides merge", part)
        super().__init__(parts)

    def __repr__(self) -> str:
        return f"Aggregates({', '.join(f'{name}={part!r}' for name, part in self.parts.items())})"

    def __reduce__(self) -> Any:
        return partial(Aggregates, **self.parts), ()


def in_place(aggregate: AggregateFunction[Any, Any]) -> InPlace:
    """`aggregate`, with its accumulators in lists, of which it looks at its own parts only."""
    return aggregate if isinstance(aggregate, Aggregates) else InPlace({None: aggregate})


def joined(aggregate: AggregateFunction[Any, Any], accumulators: list[Any]) -> Any:
    """
    One accumulator for those of sessions that have merged, which come in the order of time and are of no more
    use then. Elements are moved into the list of the session that had most.
    """
    if isinstance(aggregate, Elements):
        most = max(range(len(accumulators)), key=lambda place: len(accumulators[place]))
        elements: list[Any] = accumulators[most]
        elements[:0] = chain.from_iterable(accumulators[:most])
        elements.extend(chain.from_iterable(accumulators[most + 1 :]))
        return elements
    return reduce(aggregate.merge, accumulators)


ELEMENTS: Final = Elements()
"""Folds elements into the list of all, where there is no other aggregate."""
