"""
What a piece of keyed state is called, what it holds and how long it lives.

A descriptor is configuration: it may be shared by any number of operators. `KeyedState.state` turns it
into a handle that reads and writes the entry of the current key and namespace.

(No slots: a frozen class with slots cannot be called through its generic alias, `ValueDescriptor[int](...)`.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import isroutine
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from asyncstream.state.handles import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)
from asyncstream.state.rows import same
from asyncstream.state.schema import described, shown
from asyncstream.state.ttl import TimeToLive
from asyncstream.validation import Duration, duration_ms, function, refuse

__all__ = (
    "Aggregation",
    "AggregatingDescriptor",
    "ListDescriptor",
    "MapDescriptor",
    "ReducingDescriptor",
    "StateDescriptor",
    "ValueDescriptor",
)

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In")
Out = TypeVar("Out")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)
S_co = TypeVar("S_co", bound=State, covariant=True)


class Aggregation(Protocol[In_contra, Out_co]):
    """What an aggregating state needs to know: how an accumulator starts, grows, merges and is read."""

    def create(self) -> Any:
        """An accumulator that has seen nothing."""

    def add(self, accumulator: Any, value: In_contra, /) -> Any:
        """The accumulator with `value` in it; may change the one given and return it."""

    def merge(self, accumulator: Any, other: Any, /) -> Any:
        """One accumulator for both; may change the first, not the second."""

    def result(self, accumulator: Any, /) -> Out_co:
        """What the accumulator amounts to; shares nothing mutable with it."""


@dataclass(frozen=True)
class StateDescriptor(Generic[S_co]):
    """
    A named piece of state, one entry for each key and namespace: `StateDescriptor[S]`, S that of its handle.

    Attributes:
        name: unique within its operator; what snapshots know it by.
        ttl: how long an entry outlives its last write, in processing time; None: for ever. The elements of a
            list and the entries of a map expire one by one.
        handle: what reads and writes it.
    """

    handle: ClassVar[type[State]]
    name: str
    ttl: Duration | TimeToLive | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.name or type(self.name) is not str:
            raise refuse("name of a state", "a text that is not empty", self.name)
        if self.ttl is not None and not isinstance(self.ttl, TimeToLive):
            duration_ms(f"ttl of state {self.name!r}", self.ttl)

    @property
    def kind(self) -> str:
        """What snapshots call state of this kind, a word; behind it perhaps what has made it."""
        return self.handle.kind

    @property
    def saving(self) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        """What makes of an entry one that a codec keeps, and what makes it of that again."""
        return same, same

    @property
    def time_to_live(self) -> TimeToLive | None:
        """`ttl` with all its settings."""
        return self.ttl if self.ttl is None or isinstance(self.ttl, TimeToLive) else TimeToLive(self.ttl)

    @property
    def meaning(self) -> tuple[Any, ...]:
        """What is alike in two descriptors of the same state; functions cannot be compared."""
        ttl = self.time_to_live
        return (self.kind, None if ttl is None else (ttl.duration_ms, ttl.refresh))


@dataclass(frozen=True)
class ValueDescriptor(StateDescriptor[ValueState[T]], Generic[T]):
    """
    One value.

    Attributes:
        name: tells the states of a function apart; unique within it.
        ttl: how long an entry lives: a `timedelta` or seconds, or a `TimeToLive`; None: for ever.
        default: what is read where nothing was written; shared by all keys, so not something mutable.
    """

    handle: ClassVar[type[State]] = ValueState

    default: T | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        argument = f"default of state {self.name!r}"
        if isinstance(self.default, type):
            advice = f"for a type checker write ValueDescriptor[{self.default.__name__}]({self.name!r})"
            raise refuse(argument, "a value, not its type", self.default, advice, classes=True)
        if isroutine(self.default):
            advice = "set one where get() gives None"
            raise refuse(argument, "a value, not a function that makes one", self.default, advice)
        if type(self.default).__hash__ is None:  # as dataclasses tell what is mutable
            advice = "set one where get() gives None, or use a ListDescriptor or a MapDescriptor"
            raise refuse(argument, "nothing that can be changed, for all keys share it", self.default, advice)

    @property
    def meaning(self) -> tuple[Any, ...]:
        default = self.default
        return (*super().meaning, default if default == default else repr(default))  # NaN is unlike itself


@dataclass(frozen=True)
class ListDescriptor(StateDescriptor[ListState[T]], Generic[T]):
    """
    Values in the order in which they were added. Those of a key are kept as a whole: thousands of them are
    written with every checkpoint before which one has come, or they were read.

    Attributes:
        name: tells the states of a function apart; unique within it.
        ttl: how long an entry lives: a `timedelta` or seconds, or a `TimeToLive`; None: for ever.
    """

    handle: ClassVar[type[State]] = ListState


@dataclass(frozen=True)
class MapDescriptor(StateDescriptor[MapState[K, V]], Generic[K, V]):
    """
    A dictionary. Of each key it is kept as a whole: for thousands of entries, rather have finer keys. It is
    written with the next checkpoint when it has changed; also when `items()` was read, or a value that can
    be changed, such as a dict.

    Attributes:
        name: tells the states of a function apart; unique within it.
        ttl: how long an entry lives: a `timedelta` or seconds, or a `TimeToLive`; None: for ever.
    """

    handle: ClassVar[type[State]] = MapState


@dataclass(frozen=True)
class ReducingDescriptor(StateDescriptor[ReducingState[T]], Generic[T]):
    """
    One value, into which each added one is folded.

    Attributes:
        name: tells the states of a function apart; unique within it.
        ttl: how long an entry lives: a `timedelta` or seconds, or a `TimeToLive`; None: for ever.
        reduce: gives one value for two of the same type.
    """

    handle: ClassVar[type[State]] = ReducingState

    reduce: Callable[[T, T], T]

    def __post_init__(self) -> None:
        super().__post_init__()
        function(f"reduce of state {self.name!r}", self.reduce, "before", "value", gives=True)


@dataclass(frozen=True)
class AggregatingDescriptor(StateDescriptor[AggregatingState[In, Out]], Generic[In, Out]):
    """
    An accumulator, read through the aggregation's `result`.

    Attributes:
        name: tells the states of a function apart; unique within it.
        ttl: how long an entry lives: a `timedelta` or seconds, or a `TimeToLive`; None: for ever.
        aggregation: an `AggregateFunction` of `asyncstream.windowing`, or anything with its four methods; if
            it has `save` and `load` as well, they make of an accumulator what checkpoints keep, and back.
    """

    handle: ClassVar[type[State]] = AggregatingState

    aggregation: Aggregation[In, Out]

    @property
    def kind(self) -> str:
        return f"{super().kind} {shown(described(self.aggregation))}"

    @property
    def saving(self) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        save, load = (getattr(self.aggregation, name, None) for name in ("save", "load"))
        return (save, load) if callable(save) and callable(load) else super().saving

    def __post_init__(self) -> None:
        super().__post_init__()
        for method in ("create", "add", "merge", "result"):
            if isinstance(self.aggregation, type) or not callable(getattr(self.aggregation, method, None)):
                expected = "an object with create, add, merge and result"
                raise refuse(f"aggregation of state {self.name!r}", expected, self.aggregation)
