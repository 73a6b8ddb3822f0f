"""
Policy windows as an operator of a pipeline: `policy_window`.

The operator keeps one window manager for each key (or one in all), one watermark generator, and one
appointment with the clock. It owns no thread: elements, ticks of the watermark interval and window ends
of processing time all arrive through the operator contract.

Watermarks. In event time the operator judges lateness by its own generator, from the timestamps that the
elements carry, as Storm does. Watermarks from upstream do not fire windows and are not passed on, but for
the last: `MAX_TIMESTAMP`, like the end of input, closes what is open. Downstream gets the generator's
watermark, after the windows that it caused and less the millisecond at which elements are still taken; so
no result is late downstream. In processing time upstream's watermarks are passed on as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from asyncstream import validation
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.eventtime import check_timestamp
from asyncstream.operators.base import Operator
from asyncstream.operators.results import FirstKeys, Kinds, not_a_value
from asyncstream.state import MISSING, Cell, Table
from asyncstream.state.keys import SOUND, check_key
from asyncstream.state.snapshots import Rule, is_snapshot
from asyncstream.state.upgrade import snapshot
from asyncstream.timers import reached
from asyncstream.validation import Duration
from asyncstream.windowing.assigners import TimeKind
from asyncstream.windowing.policies.events import Event
from asyncstream.windowing.policies.manager import WindowManager
from asyncstream.windowing.policies.schedule import Schedule
from asyncstream.windowing.policies.settings import LATE, Extent, PolicySettings, policy_settings
from asyncstream.windowing.policies.watermark import WatermarkEventGenerator

__all__ = ("COUNTED", "EXPIRED", "SKIPPED", "PolicyWindow", "PolicyWindowOperator", "policy_window")

SKIPPED: Final = "skipped"
"""Tag of the output for elements that were taken, but left without having been in any window."""

T = TypeVar("T")

_check = partial(check_timestamp, 'a window without time="processing"')

MANY: Final = 1000
"""Keys that are looked at in one slice."""

COUNTED: Final = ("late", "skipped", "windows")
"""What policy windows count."""

EXPIRED: Final = "expired"
"""Tag of the output for all elements that no later window can hold: the source may forget them."""


@dataclass(frozen=True)  # with slots, PolicyWindow[int](...) would fail
class PolicyWindow(Generic[T]):
    """
    The elements of one window, in order of arrival: `PolicyWindow[T]`, by the type of an element.

    Attributes:
        values: all of them.
        new: those that were not in the window before.
        expired: those that have left since the window before.
        start_ms: the window's start, itself not in the window, milliseconds since the epoch; None if the
            length is a count.
        end_ms: the window's end, itself in the window.
    """

    values: list[T]
    new: list[T]
    expired: list[T]
    start_ms: int | None
    end_ms: int


def policy_window(
    length: Extent,
    slide: Extent | None = None,
    function: Callable[[PolicyWindow[Any]], Any] | None = None,
    *,
    tumbling: bool = False,
    time: TimeKind = "event",
    key_by: Callable[[Any], Hashable] | None = None,
    lag: Duration = 0,
    watermark_interval: Duration = 1,
    streams: Sequence[str] | None = None,
    stream_of: Callable[[Any], str] | None = None,
    idle_after: Duration | None = None,
    late: str = LATE,
) -> PolicyWindowOperator:
    """
    Windows after Storm: the last `length` of the stream, every `slide`, each a count or a duration.

    Args:
        length: how far a window reaches back: an `int` is a number of elements, a `timedelta` a length of
            time.
        slide: how far apart windows end, in the same way; None: a window ends with every element. A slide
            longer than the length leaves holes; what falls into one goes to the output `skipped`.
        function: makes a result of each window; without it the `PolicyWindow` is the result.
        tumbling: the slide is the length, so that each element is in one window; then `slide` is not given.
            Of counts in event time that holds for elements in order: of others those leave that arrived
            first, and one that no window has shown goes to `skipped`.
        time: "event": the elements' timestamps; "processing": the clock at which they arrive.
        key_by: one sequence of windows for each key; without it one for the whole stream.
        lag: how far the elements of one stream may be out of order; of no effect by the clock. What follows
            is for event time only.
        watermark_interval: processing time between two watermarks.
        streams: the streams to wait for: the watermark is that of the slowest.
        stream_of: names the stream of an element; needed with `streams`.
        idle_after: do not wait for a stream that has been silent for this long.
        late: tag of the output for elements below the watermark.

    Raises:
        PipelineError: if an argument is wrong.
    """
    settings = policy_settings(
        length,
        slide,
        tumbling=tumbling,
        time=time,
        lag=lag,
        watermark_interval=watermark_interval,
        streams=streams,
        idle_after=idle_after,
        late=late,
    )
    if (streams is None) != (stream_of is None):
        raise validation.refuse("stream_of", "a function exactly when streams are named", stream_of)
    for name, given, of in (
        ("function", function, "window"),
        ("key_by", key_by, "element"),
        ("stream_of", stream_of, "element"),
    ):
        if given is not None:
            validation.function(name, given, of)
    return PolicyWindowOperator(settings, function, key_by, stream_of)


class PolicyWindowOperator(Operator):
    """
    Emits a window, or the function's result on it, with the window's end as timestamp; where that lies beyond
    the end of time, with the last one that there is.

    Emits when: a trigger policy says so: with the n-th element, with a watermark, when a window's end has
        passed on the clock and there is room. Windows of different keys that one watermark fires come key by
        key.
    Completes when: the input ends; what is open is fired first, also the rest below a count slide.
    Side outputs: `late` (or as named), `skipped`, `expired`.
    Snapshot holds: the elements held, the policies' counts, the watermark and each stream's newest timestamp.

    Args:
        settings: length, slide, and how time goes.
        function: makes a result of a window; None: the window is the result.
        key_by: gives the key of an element; None: all share their windows.
        stream_of: gives the name of the stream that an element is of, for its watermark.
    """

    works_off = True

    def __init__(
        self,
        settings: PolicySettings,
        function: Callable[[PolicyWindow[Any]], Any] | None = None,
        key_by: Callable[[Any], Hashable] | None = None,
        stream_of: Callable[[Any], str] | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self._function = function
        self._key_by = None if key_by is None else FirstKeys(self, key_by)
        self._kinds = Kinds()
        self._stream_of = stream_of
        self._generator = WatermarkEventGenerator(settings.lag_ms, settings.streams, settings.idle_after_ms)
        self._managers = self.tables.declare(
            Table("managers", save=WindowManager.snapshot, load=self._loaded_manager, is_bound=True)
        )
        self._schedule = Schedule()
        self._touched: dict[Hashable, None] = {}  # keys with new elements, which are to be scheduled
        self._wake_ms: int | None = None  # the appointment with the clock
        self._promised_ms = MIN_TIMESTAMP  # the last watermark passed on
        for name in ("promised", "wake"):
            self.tables.declare_cell(name, Cell.of(self, f"_{name}_ms", "min"))
        for name, cell in self._generator.cells().items():
            self.tables.declare_cell(name, cell)
        self._counts = dict.fromkeys(COUNTED, 0)
        self.tables.on_restored(self._restored)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        now = self.context.clock.now_ms()
        if self._wake_ms is not None and now >= self._wake_ms:
            self.context.work_off(self._advancing_before(values, timestamps, now))
        elif values:
            self._take(values, timestamps, now)

    def _advancing_before(self, values: Sequence[Any], timestamps: Timestamps, now: int) -> Iterator[None]:
        """What ended before these elements does not hold them."""
        yield from self._advancing(now)
        if values:
            self._take(values, timestamps, now)

    def _take(self, values: Sequence[Any], timestamps: Timestamps, now: int) -> None:
        if self.settings.event_time:
            self._process_in_event_time(values, timestamps, now)
        else:
            self._process_in_processing_time(values, now)

    def advance_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:
            self.context.work_off(self._closing(partial(super().advance_watermark, timestamp)))
        elif not self.settings.event_time:
            super().advance_watermark(timestamp)

    def restore_watermark(self, timestamp: int) -> None:
        if not self.settings.event_time:
            super().restore_watermark(timestamp)

    def advance_clock(self, now_ms: int) -> None:
        if self._wake_ms is not None and now_ms >= self._wake_ms:
            if self.context.has_room():
                self.context.work_off(self._advancing(now_ms, self.context.has_room))
            else:
                self.context.wake_with_room()

    def _advancing(self, now_ms: int, has_room: Callable[[], bool] | None = None) -> Iterator[None]:
        """Does what was to be done by `now_ms`; without room, the windows of the other keys wait."""
        self._wake_ms = None
        if self.settings.event_time:
            yield from self._ticking(now_ms)
            self._await_silence(now_ms)
        else:
            yield from self._firing(now_ms, now_ms, has_room)
            self._wake_at(self._schedule.next_ms())

    def mark_idle(self, stream: str) -> None:
        """Do not wait for `stream` until an element of it arrives."""
        self._generator.mark_idle(stream)
        self._wake_at(self.context.clock.now_ms() + self.settings.watermark_interval_ms)

    def end_input(self) -> None:
        self.context.work_off(self._closing(super().end_input))

    def upgraded(self, state: Any) -> Any:
        if is_snapshot(state):
            return state
        known = {**state, **state["generator"]}
        known |= {f"highest/{stream}": at for stream, at in known["highest"].items()}
        own = {name: cell.rule for name, cell in self._generator.cells().items()}
        rules: dict[str, Rule] = {"promised": "min", "wake": "min", **own}
        cells = {name: known[name] for name in rules if name in known}
        return snapshot({"managers": [[None, state["managers"]]]}, cells, rules)

    def _restored(self) -> Iterator[None]:
        self._schedule, self._touched = Schedule(), dict.fromkeys(self._managers.whole())
        yield from self._scheduling()
        if self._wake_ms is not None:
            self.context.wake_at(self._wake_ms)
        else:  # the settings may say now that silence makes a stream idle
            self._await_silence(self.context.clock.now_ms())

    def resume(self) -> None:
        if self._promised_ms > MIN_TIMESTAMP:
            super().restore_watermark(self._promised_ms)

    def metrics(self) -> dict[str, int]:
        held = sum(len(manager.queue) for manager in list(self._managers.whole().values()))
        return {**self._counts, "held": held}

    def _process_in_event_time(self, values: Sequence[Any], timestamps: Timestamps, now: int) -> None:
        values, stamps = self._accept(values, [None] if timestamps is None else list(timestamps), now)
        self._wake_at(now + self.settings.watermark_interval_ms)
        if not values:
            return
        if self._key_by is None:
            self._manager(None).add(values, stamps, now)
            self._touched[None] = None
            return
        groups: dict[Hashable, tuple[list[Any], list[int]]] = {}
        for key, value, stamp in zip(self._keys(values), values, stamps, strict=True):
            group = groups.setdefault(key, ([], []))
            group[0].append(value)
            group[1].append(stamp)
        for key, group in groups.items():
            self._manager(key).add(*group, now)
        self._touched |= dict.fromkeys(groups)

    def _accept(self, values: Sequence[Any], stamps: list[Any], now: int) -> tuple[Sequence[Any], list[int]]:
        """Show the elements to the watermark generator; those that are not late."""
        is_placed = {*map(type, stamps)} == {int}
        earliest, latest = (min(stamps), max(stamps)) if is_placed else (0, 0)
        if not is_placed or earliest < MIN_TIMESTAMP or latest > MAX_TIMESTAMP:
            for value, stamp in zip(values, stamps, strict=False):
                try:
                    _check(stamp)
                except (TypeError, ValueError) as error:
                    self.fail_on(value, error)
        generator = self._generator
        if self._stream_of is None:
            generator.track(self.settings.streams[0], latest, now)
        else:
            for value, stamp in zip(values, stamps, strict=True):
                try:
                    stream = self._stream_of(value)
                except BaseException as error:
                    self.fail_on(value, error)
                generator.track(stream, stamp, now)
        watermark = generator.watermark_ms
        if earliest >= watermark:
            return values, stamps
        late = [index for index, stamp in enumerate(stamps) if stamp < watermark]
        self._counts["late"] += len(late)
        self.side_output(self.settings.late).process_batch(
            [values[index] for index in late], [stamps[index] for index in late]
        )
        kept = [index for index, stamp in enumerate(stamps) if stamp >= watermark]
        return [values[index] for index in kept], [stamps[index] for index in kept]

    def _process_in_processing_time(self, values: Sequence[Any], now: int) -> None:
        keys: Iterable[Hashable] = (None,)
        if self._key_by is None:
            self._manager(None).add(values, [now] * len(values), now)
        else:
            # one by one: windows come in the order of the elements that fire them
            keys = self._keys(values)
            for key, value in zip(keys, values, strict=True):
                self._manager(key).add([value], [now], now)
        if self.settings.slide_ms is not None:
            for key in (touched := dict.fromkeys(keys)):
                self._wake_at(self._manager(key).due_ms())
            self._touched |= touched

    def _keys(self, values: Sequence[Any]) -> list[Hashable]:
        assert self._key_by is not None
        keys = []
        for value in values:
            try:
                key = self._key_by(value)
                if type(key) not in SOUND:
                    check_key(key)
                keys.append(key)
            except BaseException as error:
                self.fail_on(value, error)
        return keys

    def _manager(self, key: Hashable) -> WindowManager:
        manager: WindowManager = self._managers.get(None, key)
        if manager is MISSING:
            manager = self._new_manager()
            self._managers.put(None, key, manager)
        return manager

    def _new_manager(self) -> WindowManager:
        settings = self.settings
        return WindowManager(settings.eviction_policy(), settings.trigger_policy(), self._emit, self._let_go)

    def _loaded_manager(self, kept: dict[str, Any]) -> WindowManager:
        manager = self._new_manager()
        manager.restore(kept)
        return manager

    def _ticking(self, now_ms: int) -> Iterator[None]:
        watermark = self._generator.tick(now_ms)
        if watermark is None:
            return
        yield from self._firing(watermark, now_ms)
        self._promised_ms = watermark - 1
        super().advance_watermark(watermark - 1)

    def _scheduling(self) -> Iterator[None]:
        """Notes when windows may end of the keys that have new elements, in slices."""
        touched, self._touched = self._touched, {}
        for number, key in enumerate(touched, start=1):
            self._schedule.put(key, self._managers.peek(None, key).due_ms())
            if number % MANY == 0:
                yield

    def _firing(
        self, time_ms: int, now_ms: int, has_room: Callable[[], bool] | None = None
    ) -> Iterator[None]:
        """
        Fires the windows that end by this time, as far as there is room; no other key becomes young.

        Under a time slide a key without elements is let go then; its next window is like its first.
        """
        yield from self._scheduling()
        managers, schedule = self._managers, self._schedule
        forgets = self._key_by is not None and self.settings.slide_ms is not None
        schedule.reach(time_ms)
        while schedule.due:
            if has_room is not None and not has_room():
                self.context.wake_with_room()
                return
            key, _ = schedule.due.popitem(last=False)
            manager = managers.get(None, key)
            yield from manager.advancing(time_ms, now_ms)
            if forgets and not len(manager.queue):
                managers.remove(None, key)
                schedule.forget(key)
            else:
                schedule.put(key, manager.due_ms())

    def _closing(self, then: Callable[[], None]) -> Iterator[None]:
        """Fires what is open, for nothing follows but what is told of `then`."""
        now = self.context.clock.now_ms()
        for manager in self._managers.adopt(None).values():
            if not self.settings.event_time:
                yield from manager.advancing(now, now)
            yield from manager.closing(reached(MAX_TIMESTAMP), now)
        self._managers.drop(None)
        self._schedule, self._touched = Schedule(), {}
        then()

    def _await_silence(self, now_ms: int) -> None:
        """Ask to be woken while silence may make a stream idle."""
        if self.settings.idle_after_ms is not None and None in self._managers:
            self._wake_at(now_ms + self.settings.watermark_interval_ms)

    def _wake_at(self, wake_ms: int | None) -> None:
        """Ask to be woken then, or earlier; None: not for this."""
        if wake_ms is not None and (self._wake_ms is None or wake_ms < self._wake_ms):
            self._wake_ms = wake_ms
            self.context.wake_at(wake_ms)

    def _emit(self, window: list[Event], new: list[Event], expired: list[Event], end_ms: int) -> None:
        length_ms = self.settings.length_ms
        result: Any = PolicyWindow(
            [event.value for event in window],
            [event.value for event in new],
            [event.value for event in expired],
            None if length_ms is None else end_ms - length_ms,
            end_ms,
        )
        self._counts["windows"] += 1
        if self._function is not None:
            try:
                result = self._function(result)
                if self._kinds.first_deferred([result]) is not None:
                    raise not_a_value([result], "await in an async_map behind the windows")
            except BaseException as error:
                self.fail_on(result, error)
        # only the rest that a finite stream leaves below a count slide can end before the watermark passed on
        timestamp = max(end_ms, self._promised_ms + 1) if self.settings.event_time else end_ms
        self.out.process(result, min(timestamp, MAX_TIMESTAMP))

    def _let_go(self, expired: list[Event]) -> None:
        skipped = [event for event in expired if not event.window]
        if skipped:
            self._counts["skipped"] += len(skipped)
            self._report(SKIPPED, skipped)
        self._report(EXPIRED, expired)

    def _report(self, tag: str, events: list[Event]) -> None:
        if tag in self.side:
            self.side[tag].process_batch(
                [event.value for event in events], [event.timestamp for event in events]
            )
