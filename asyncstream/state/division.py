"""
Divides a snapshot among those who each keep some of the keys, and unites what they remember.

A keyed operator says by a layout where in its snapshot keys are. A layout is one of these:

    Keyed(at)        a list of entries, each a list with its key at that position
    Common(choose)   about no key in particular: all get it; united, the chosen one of those that are not None
    TOTAL            a count: one of them gets it; united, the sum
    Each(layout)     a dict with any names, each value with that layout
    {name: layout}   a dict with these names, of which it may lack some
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

__all__ = ("CELLS", "TIMERS", "TOTAL", "Common", "Each", "Keyed", "Layout", "divide", "unite")


@dataclass(frozen=True, slots=True)
class Keyed:
    """
    A list of entries with keys.

    Attributes:
        at: the position of the key in an entry.
        ordered: entries come in the order of their first items, also when they are united.
    """

    at: int
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Common:
    """
    Something that is about no key in particular.

    Attributes:
        choose: `min` or `max` of what there is.
    """

    choose: Callable[[Sequence[Any]], Any]


class _Total:
    """A count."""


@dataclass(frozen=True, slots=True)
class Each:
    """A dict with any names, each of whose values has the same layout."""

    layout: Layout


Layout: TypeAlias = Keyed | Common | _Total | Each | Mapping[str, "Layout"]

TOTAL: Final = _Total()

CELLS: Final = Each({"kind": Common(min), "times": Common(min), "cells": Keyed(0)})
"""The snapshot of a `KeyedState`."""

TIMERS: Final = {"event": Keyed(1, ordered=True), "processing": Keyed(1, ordered=True)}
"""The snapshot of a `TimerService`."""


def divide(
    state: Any, layout: Layout, share_of: Callable[[Any], int], shares: Collection[int]
) -> dict[int, Any]:
    """
    A snapshot in parts.

    Args:
        share_of: which part the entries of a key belong to.
        shares: all parts that there are.
    """
    if isinstance(layout, Keyed):
        lists: dict[int, list[Any]] = {share: [] for share in shares}
        for entry in state:
            lists[share_of(entry[layout.at])].append(entry)
        return lists
    if isinstance(layout, Common):
        return dict.fromkeys(shares, state)
    if isinstance(layout, _Total):
        first = min(shares)
        return {share: state if share == first else type(state)() for share in shares}
    divided = {
        name: divide(state[name], inner, share_of, shares) for name, inner in _parts(layout, (state,)).items()
    }
    return {share: {name: parts[share] for name, parts in divided.items()} for share in shares}


def unite(states: Sequence[Any], layout: Layout) -> Any:
    """The snapshot that has these parts, of which there is at least one."""
    if isinstance(layout, Keyed):
        entries = [entry for state in states for entry in state]
        return sorted(entries, key=lambda entry: entry[0]) if layout.ordered else entries
    if isinstance(layout, Common):
        known = [state for state in states if state is not None]
        return layout.choose(known) if known else None
    if isinstance(layout, _Total):
        return sum(states)
    return {
        name: unite([state[name] for state in states if name in state], inner)
        for name, inner in _parts(layout, states).items()
    }


def _parts(layout: Each | Mapping[str, Layout], states: Sequence[Any]) -> Mapping[str, Layout]:
    present = dict.fromkeys(name for state in states for name in state)
    if isinstance(layout, Each):
        return dict.fromkeys(present, layout.layout)
    return {name: inner for name, inner in layout.items() if name in present}
