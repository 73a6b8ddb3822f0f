"""
A harness: drives operators by hand, one call after the other, without an event loop.

    with harness(Sessions(), key_by=lambda event: event.user) as tested:
        tested.push(click, at=1_000)
        tested.advance(61_000)
        assert tested.collect() == [Session(...)]

What is pushed has been worked on when `push` returns, and time stands still unless a test moves it: event
time by `advance`, processing time by `advance_clock`. `restart` does what a crash behind a checkpoint does:
what is remembered is written to bytes with the codec that checkpoints use, and a new one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, TypeAlias, overload

from asyncstream.clock import ManualClock
from asyncstream.codec import Codec
from asyncstream.codec import codec as codec_of
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.errors import PipelineError
from asyncstream.operators.base import Operator
from asyncstream.testing.segment import Element, Emitted, Outlet, Parts, Segment
from asyncstream.testing.subjects import Around, Tested, maker
from asyncstream.validation import Duration, choice, count, flag, instant_ms, refuse, selector, text
from asyncstream.windowing import WindowAssigner

__all__ = ("Harness", "HarnessSnapshot", "harness")

Instant: TypeAlias = int | datetime
"""A point in time: milliseconds since the epoch, or an aware `datetime`."""


@dataclass(frozen=True, slots=True)
class HarnessSnapshot:
    """
    What was remembered at one moment, as bytes: `Harness.restore` goes on from there.

    Attributes:
        data: the bytes that a checkpoint would hold.
        states: the same to look at: by the name of the step, what it remembered.
    """

    data: bytes
    states: Mapping[str, Any]


def harness(
    what: Tested,
    *,
    key_by: Callable[[Any], Any] | str | tuple[str, ...] | None = None,
    window: WindowAssigner | None = None,
    allowed_lateness: Duration = 0,
    name: str = "tested",
    codec: str | Codec = "json",
    types: Iterable[type] = (),
    now: Instant = 0,
) -> Harness:
    """
    Open an operator, a function of your own, or a segment of a pipeline, to be driven by hand.

    Args:
        what: one of

            * a `KeyedProcessFunction`;
            * a `ProcessWindowFunction`, `Trigger`, `Evictor` or `AggregateFunction`, with `window=`; or a
              `WindowAssigner`: what a firing gives is a `WindowResult`;
            * a function from streams to a stream, `lambda stream: stream.map(...).key_by(...).process(...)`,
              of steps that do not wait. It is given as many streams as it has parameters: so joins, and what
              `connect` takes, are tested;
            * an `Operator`;
            * a class of the above, or a function without parameters, that makes one of them anew for each
              start.

            Of an object a deep copy works from the first `restart` or `restore` on, made before anything had
            happened to it: what it keeps in attributes is gone then, as it is when a process dies.
        key_by: the key of an element, for what works on keys; None: all elements have the same, None.
        window: the windows of what works in them.
        allowed_lateness: of these windows; a `timedelta` or seconds.
        name: of the step, where there is only one.
        codec: what snapshots are written with, as in `Checkpoints`.
        types: classes that the values are made of, as in `Checkpoints`.
        now: processing time at the start.

    Raises:
        PipelineError: if it cannot be driven by hand, or an argument does not go with it.
    """
    if window is not None and not isinstance(window, WindowAssigner):
        raise refuse("window", "a WindowAssigner", window, "e.g. TumblingWindows(60)")
    around = Around(key_by, window, allowed_lateness, text("name", name))
    sides = getattr(what, "sides", None)
    return Harness(maker(what, around), codec_of(codec, types), instant_ms(now), sides)


class Harness:
    """
    What `harness` opens; a context manager that closes it.

    Args:
        make: gives the parts of each start; what comes out of them is to be put into the outlet.
        codec: what snapshots are written with.
        now_ms: processing time at the start, milliseconds since the epoch.
        sides: the tags of the side outputs that a function has declared; None: it may have others.
    """

    def __init__(
        self, make: Callable[[Outlet], Parts], codec: Codec, now_ms: int, sides: Sequence[str] | None = None
    ) -> None:
        self._make = make
        self._sides = sides
        self._codec = codec
        self._clock = ManualClock(now_ms)
        self._outlet = Outlet()
        self._start()

    def _start(self) -> None:
        self._due_ms: dict[Operator, int] = {}
        self._segment = Segment(self._make(self._outlet), self._outlet, self._clock, self._wake)
        self._watermarks = [MIN_TIMESTAMP] * len(self._segment.heads)
        self._ended = False

    def _wake(self, operator: Operator, at_ms: int) -> None:
        self._due_ms[operator] = min(at_ms, self._due_ms.get(operator, at_ms))

    def __enter__(self) -> Harness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ what goes in

    def push(self, value: Any, at: Instant | None = None, *, input: int = 0) -> None:
        """
        An element arrives.

        Args:
            at: its event time.
            input: which one it arrives at; starts at 0.

        Raises:
            UserFunctionError: if a function of yours failed on it.
        """
        self._head(input).process(value, None if at is None else instant_ms(at))

    def push_all(
        self, values: Iterable[Any], at: Callable[[Any], Instant] | str | None = None, *, input: int = 0
    ) -> None:
        """
        Several elements arrive at once, in one batch.

        Args:
            at: gives the event time of an element: a function, or the name of a field; None: they have none.
            input: as for `push`.
        """
        batch, time_of = list(values), None if at is None else selector("at", at)
        timestamps = None if time_of is None else [instant_ms(time_of(one)) for one in batch]
        self._head(input).process_batch(batch, timestamps)

    def advance(self, watermark: Instant, *, input: int = 0) -> None:
        """
        Event time advances: no element with a timestamp up to this one follows.

        Args:
            watermark: not before the last one.
            input: as for `push`.
        """
        timestamp = instant_ms(watermark)
        head = self._head(input)
        if timestamp < self._watermarks[input]:
            raise PipelineError(f"watermarks never decrease: {timestamp} after {self._watermarks[input]}")
        self._watermarks[input] = timestamp
        head.advance_watermark(timestamp)

    def advance_clock(self, now: Instant) -> None:
        """
        Processing time goes on to `now`; timers up to then fire, each when its time has come.

        Args:
            now: not before what the clock shows.
        """
        now_ms = instant_ms(now)
        while self._due_ms and (at_ms := min(self._due_ms.values())) <= now_ms:
            self._clock.set_ms(max(at_ms, self._clock.now_ms()))
            for operator in [one for one, due_ms in self._due_ms.items() if due_ms <= at_ms]:
                del self._due_ms[operator]
                operator.advance_clock(self._clock.now_ms())
        self._clock.set_ms(now_ms)

    def set_idle(self, idle: bool = True, *, input: int = 0) -> None:
        """An input is not to be waited for any more, or is to be again."""
        self._head(input).set_idle(flag("idle", idle))

    def end(self) -> None:
        """
        Every input comes to its end, and event time to its own; nothing can be pushed any more, but behind a
        restart, which goes on at the watermark before.
        """
        for number in range(len(self._segment.heads)):
            head = self._head(number)
            head.advance_watermark(MAX_TIMESTAMP)
            head.end_input()
        self._ended = True

    def _head(self, input: int) -> Operator:
        heads = self._segment.heads
        if count("input", input, least=0) >= len(heads):
            raise PipelineError(f"input: there are {len(heads)}, counted from 0; got {input}")
        if self._ended:
            raise PipelineError("the harness is closed, or its input has ended")
        return heads[input]

    # ------------------------------------------------------------------ what comes out

    @overload
    def collect(self, side: str | None = None, *, timestamps: Literal[False] = False) -> list[Any]: ...
    @overload
    def collect(
        self, side: str | None = None, *, timestamps: Literal[True]
    ) -> list[tuple[Any, int | None]]: ...
    def collect(self, side: str | None = None, *, timestamps: bool = False) -> list[Any]:
        """
        The elements that have come out of one output since it was asked last, in order.

        Args:
            side: the tag of a side output that nothing in the segment reads; None: the main output.
            timestamps: give (value, timestamp) instead of values.

        Raises:
            PipelineError: if the function has declared its side outputs (`sides`) and this is none of them.
        """
        if side is not None:
            text("side", side) if self._sides is None else choice("side", side, tuple(self._sides))
        found: list[Element] = []
        rest: list[Emitted] = []
        for one in self._outlet.emitted:
            if isinstance(one, Element) and one.side == side:
                found.append(one)
            else:
                rest.append(one)
        self._outlet.emitted[:] = rest
        return [(one.value, one.timestamp) if timestamps else one.value for one in found]

    def collect_all(self) -> list[Emitted]:
        """All that has come out and was not collected, in order: elements, watermarks, idleness, the end."""
        found = list(self._outlet.emitted)
        self._outlet.emitted.clear()
        return found

    @property
    def watermark(self) -> int:
        """Event time as it has come out, milliseconds since the epoch; `MIN_TIMESTAMP` before the first."""
        return self._outlet.watermark

    @property
    def is_idle(self) -> bool:
        """Whether what comes out says that it is not to be waited for."""
        return self._outlet.is_idle

    @property
    def now_ms(self) -> int:
        """Processing time, milliseconds since the epoch."""
        return self._clock.now_ms()

    def metrics(self) -> dict[str, dict[str, int]]:
        """What the operators count, by step."""
        return {name: operator.metrics() for name, operator in self._segment.operators.items()}

    # ------------------------------------------------------------------ what is remembered

    def snapshot(self) -> HarnessSnapshot:
        """
        What is remembered now, written as a checkpoint would.

        Raises:
            CheckpointError: if it holds what the codec does not keep; names the step.
        """
        states = list(self._segment.states(self._codec))
        data = self._codec.encode([states, self._watermarks, self.now_ms])
        return HarnessSnapshot(data, {name: self._codec.decode(state) for name, _, state, _ in states})

    def restore(self, snapshot: HarnessSnapshot) -> None:
        """
        A new operator goes on from `snapshot`, also one of another harness, whose code may have been another.

        What came out before stays to be collected. Event time is what it was then; processing time too,
        unless it is later here.

        Raises:
            PipelineError: if the object that is tested cannot be copied; give a function that makes it.
            CheckpointError: if a step has changed and cannot use what it remembered.
        """
        if not isinstance(snapshot, HarnessSnapshot):
            raise refuse("snapshot", "what Harness.snapshot gave", snapshot)
        states, watermarks, now_ms = self._codec.decode(snapshot.data)
        self._segment.close()
        self._start()
        if len(watermarks) != len(self._watermarks):
            raise PipelineError(
                f"the snapshot is of {len(watermarks)} inputs, here are {len(self._watermarks)}"
            )
        self._clock.set_ms(max(now_ms, self._clock.now_ms()))
        self._segment.restore(states, self._codec)
        self._watermarks = list(watermarks)
        for head, watermark in zip(self._segment.heads, watermarks, strict=True):
            if watermark > MIN_TIMESTAMP:
                head.restore_watermark(watermark)

    def restart(self) -> None:
        """Crash, and go on from a checkpoint that was taken just before."""
        self.restore(self.snapshot())

    def close(self) -> None:
        """Close what is tested; done at the end of a `with` block."""
        self._ended = True
        self._due_ms.clear()
        self._segment.close()
