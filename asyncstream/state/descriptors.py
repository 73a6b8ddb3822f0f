"""
What a piece of keyed state is called, what it holds and how long it lives.

A descriptor is configuration: it may be shared by any number of operators. `KeyedState.state` turns it
into a handle that reads and writes the entry of the current key and namespace.

(No slots: a frozen class with slots cannot be called through its generic alias, `ValueDescriptor[int](...)`.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from asyncstream.arguments import Duration, duration_ms, refuse

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


class Aggregation(Protocol[In_contra, Out_co]):
    """What an aggregating state needs to know: how an accumulator starts, grows, merges and is read."""

    def create(self) -> Any:
        """An accumulator that has seen nothing."""

    def add(self, accumulator: Any, value: In_contra) -> Any:
        """The accumulator with `value` in it; may change the one given and return it."""

    def merge(self, accumulator: Any, other: Any) -> Any:
        """One accumulator for both; may change the first, not the second."""

    def result(self, accumulator: Any) -> Out_co:
        """What the accumulator amounts to; shares nothing mutable with it."""


@dataclass(frozen=True)
class StateDescriptor:
    """
    A named piece of state, one entry for each key and namespace.

    Attributes:
        name: unique within its operator; what snapshots know it by.
        ttl: how long an entry outlives its last write, in processing time; None: for ever. A list or a map
            lives and dies as a whole.
    """

    name: str
    ttl: Duration | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.name or type(self.name) is not str:
            raise refuse("name of a state", "a text that is not empty", self.name)
        if self.ttl is not None:
            duration_ms(f"ttl of state {self.name!r}", self.ttl)

    @property
    def ttl_ms(self) -> int | None:
        """`ttl` in whole milliseconds."""
        return None if self.ttl is None else duration_ms("ttl", self.ttl)


@dataclass(frozen=True)
class ValueDescriptor(StateDescriptor, Generic[T]):
    """
    One value.

    Attributes:
        default: what is read where nothing was written; shared by all keys, so not something mutable.
    """

    default: T | None = None


@dataclass(frozen=True)
class ListDescriptor(StateDescriptor, Generic[T]):
    """Values in the order in which they were added."""


@dataclass(frozen=True)
class MapDescriptor(StateDescriptor, Generic[K, V]):
    """A dictionary."""


@dataclass(frozen=True)
class ReducingDescriptor(StateDescriptor, Generic[T]):
    """
    One value, into which each added one is folded.

    Attributes:
        reduce: gives one value for two of the same type.
    """

    reduce: Callable[[T, T], T]


@dataclass(frozen=True)
class AggregatingDescriptor(StateDescriptor, Generic[In, Out]):
    """
    An accumulator, read through the aggregation's `result`.

    Attributes:
        aggregation: an `AggregateFunction` of `asyncstream.windowing`, or anything with its four methods.
    """

    aggregation: Aggregation[In, Out]
