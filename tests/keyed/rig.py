"""Keyed operators with restarts and divisions at any place, and what they emit by key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from asyncstream.clock import ManualClock
from asyncstream.codec import codec
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.keyed import Change
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.spec import Spec
from tests.operators.recorder import Recorder, W

CODEC = codec("json")

Element = tuple[str, int, int]
"""Key, value, timestamp."""

Steps = list[tuple[Any, ...]]

ELEMENTS = st.tuples(st.just("el"), st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 30)))
LIVES = st.one_of(st.tuples(st.just("restart")), st.tuples(st.just("divide"), st.integers(1, 3)))


def steps(*others: Any) -> Any:
    """Scripts of elements, restarts, divisions by key, and these."""
    return st.lists(st.one_of(ELEMENTS, ELEMENTS, ELEMENTS, LIVES, *others), max_size=40)


ADVANCES = st.tuples(st.just("wm"), st.integers(0, 6))
TICKS = st.tuples(st.just("pt"), st.integers(1, 4))


def key_of(element: Element) -> str:
    return element[0]


def value_of(element: Element) -> int:
    return element[1]


class Rig:
    """
    Plays scripts on the operators of a spec.

    Attributes:
        seen: what was emitted, with its timestamps, by key.
        aside: what was sent to each side output.
    """

    def __init__(self, spec: Spec, key_of_result: Callable[[Any], Any], sides: Sequence[str] = ()) -> None:
        self.spec, self.sides = spec, sides
        self.key_of_result = key_of_result
        self.clock = ManualClock(0)
        self.watermark = MIN_TIMESTAMP
        self.seen: dict[Any, list[Any]] = {}
        self.aside: dict[str, list[Any]] = {tag: [] for tag in sides}
        self.parts = [self._opened()]

    def play(self, script: Steps) -> Rig:
        for kind, *arguments in script:
            if kind == "el":
                self.push(arguments[0], arguments[0][2])
            elif kind == "wm":
                self.advance((0 if self.watermark == MIN_TIMESTAMP else self.watermark) + arguments[0])
            elif kind == "pt":
                self.clock.set_ms(self.clock.now_ms() + arguments[0])
            elif kind == "restart":
                self._restore([part.snapshot() for part in self.parts])
            else:
                self._divide(arguments[0])
            self._collect()
        return self

    def push(self, element: Any, timestamp: int | None = None) -> None:
        """An element of the key that it begins with, or that of the row of a change."""
        row = element.value if isinstance(element, Change) else element
        self._part_of(row[0]).process(element, timestamp)
        self._collect()

    def advance(self, watermark: int) -> None:
        """Event time goes on."""
        self.watermark = watermark
        for part in self.parts:
            part.advance_watermark(watermark)
        self._collect()

    def end(self) -> Rig:
        self.advance(MAX_TIMESTAMP)
        return self

    def _opened(self) -> Operator:
        operator = self.spec.build()
        operator.out = Recorder()
        operator.side = {tag: Recorder() for tag in self.sides}
        operator.open(OperatorContext(clock=self.clock))
        return operator

    def _share_of(self, key: Any) -> int:
        return ord(key) % len(self.parts)

    def _part_of(self, key: Any) -> Operator:
        return self.parts[self._share_of(key)]

    def _divide(self, shares: int) -> None:
        states = [CODEC.decode(CODEC.encode(part.snapshot())) for part in self.parts]
        whole = self.parts[0].united(states)
        self.parts = [self._opened() for _ in range(shares)]
        divided = self.parts[0].divided(whole, self._share_of, range(shares))
        assert divided is not None
        self._restore([divided[share] for share in range(shares)])

    def _restore(self, states: list[Any]) -> None:
        self.parts = [self._opened() for _ in states]
        for part, state in zip(self.parts, states, strict=True):
            part.restore(CODEC.decode(CODEC.encode(state)))
            if self.watermark > MIN_TIMESTAMP:
                part.restore_watermark(self.watermark)

    def _collect(self) -> None:
        for part in self.parts:
            for tag, output in [(None, part.out), *part.side.items()]:
                assert isinstance(output, Recorder)
                for value, timestamp in output.seen:
                    if value in (W, "restored"):
                        continue
                    if tag is None:
                        self.seen.setdefault(self.key_of_result(value), []).append((value, timestamp))
                    else:
                        self.aside[tag].append((value, timestamp))
                output.seen.clear()
