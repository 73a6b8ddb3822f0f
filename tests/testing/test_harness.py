"""What users drive by hand: their own process functions, triggers and window functions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from asyncstream import (
    AsyncFunction,
    CheckpointError,
    Count,
    KeyedContext,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    PipelineError,
    SessionWindows,
    Stream,
    TumblingWindows,
    UserFunctionError,
    WindowResult,
)
from asyncstream.elements import MAX_TIMESTAMP, EndOfInput, IdleStatus, Watermark
from asyncstream.operators.base import Operator
from asyncstream.operators.emitting import Emitter
from asyncstream.state import ValueDescriptor
from asyncstream.testing import Element, Harness, harness
from asyncstream.windowing import (
    CountEvictor,
    GlobalWindows,
    ProcessWindowFunction,
    Trigger,
    TriggerContext,
    TriggerResult,
    Window,
    WindowContext,
)


class Quiet(KeyedProcessFunction[str, str]):
    """Tells of a key that nothing has come of for a second, by either clock."""

    def __init__(self, *, processing: bool = False) -> None:
        self.processing = processing
        self.seen = 0
        self.closed = 0

    def open(self, ctx: KeyedContext) -> None:
        self._count = ctx.state(ValueDescriptor[int]("count"))

    def process_element(self, value: str, ctx: KeyedContext, out: Emitter[str]) -> None:
        self.seen += 1
        if value == "bad":
            raise ValueError("a bad one")
        self._count.set((self._count.get() or 0) + 1)
        if self.processing:
            ctx.register_processing_timer(ctx.now_ms + 1000)
        elif ctx.timestamp_or_none is not None:
            ctx.register_event_timer(ctx.timestamp + 1000)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[str]) -> None:
        out(f"{ctx.key}: {self._count.get()} at {ctx.now_ms if self.processing else timestamp}")
        ctx.side("timers", timestamp)

    def close(self) -> None:
        self.closed += 1


def itself(value: Any) -> Any:
    return value


def test_process_function_is_driven_by_both_clocks() -> None:
    with harness(Quiet(), key_by=itself) as tested:
        tested.push("a", at=0)
        tested.push("b", at=500)
        tested.advance(999)
        assert tested.collect() == []
        tested.advance(1000)
        assert tested.collect(timestamps=True) == [("a: 1 at 1000", 1000)]
        tested.advance(datetime(1970, 1, 2, tzinfo=UTC))
        assert tested.collect() == ["b: 1 at 1500"]
        assert tested.collect("timers") == [1000, 1500]
        assert tested.watermark == 24 * 3600 * 1000
    with harness(Quiet(processing=True), key_by=itself, now=10_000) as tested:
        tested.push("a")
        tested.advance_clock(10_500)
        tested.push("b")
        tested.advance_clock(10_999)
        assert tested.collect() == []
        tested.advance_clock(60_000)
        assert tested.collect() == ["a: 1 at 11000", "b: 1 at 11500"], "each fires when its time has come"
        assert tested.now_ms == 60_000


@pytest.mark.parametrize(
    "make",
    [lambda: harness(Quiet(), key_by=itself), lambda: harness(Quiet, key_by=itself)],
    ids=["object", "class"],
)
def test_restart_keeps_state_and_timers_and_nothing_else(make: Callable[[], Harness]) -> None:
    with make() as tested:
        tested.push("a", at=0)
        tested.advance(400)
        tested.restart()
        tested.push("a", at=100)
        tested.advance(2000)
        assert tested.collect(timestamps=True) == [("a: 2 at 1000", 1000), ("a: 2 at 1100", 1100)]


class Forgetful(KeyedProcessFunction[str, int]):
    """Keeps in an attribute what belongs in state: a user's mistake."""

    def __init__(self) -> None:
        self.count = 0

    def process_element(self, value: str, ctx: KeyedContext, out: Emitter[int]) -> None:
        self.count += 1
        out(self.count)


def test_restart_finds_what_is_kept_in_attributes() -> None:
    with harness(Forgetful()) as tested:
        tested.push_all("abc")
        tested.restart()
        tested.push("d")
        assert tested.collect() == [1, 2, 3, 1]


def test_snapshot_can_be_gone_back_to_and_looked_at() -> None:
    with harness(Quiet(), key_by=itself, name="quiet") as tested:
        tested.push("a", at=0)
        snapshot = tested.snapshot()
        for _ in range(2):
            tested.push("a", at=500)
            tested.advance(2000)
            assert tested.collect() == ["a: 2 at 1000", "a: 2 at 1500"]
            tested.restore(snapshot)
        assert isinstance(snapshot.data, bytes)
        assert list(snapshot.states) == ["quiet"]
    with harness(Quiet(), key_by=itself, name="quiet") as another:
        another.restore(snapshot)
        another.advance(1000)
        assert another.collect() == ["a: 1 at 1000"]


def test_what_was_late_is_late_after_a_restart() -> None:
    with harness(Count(), window=TumblingWindows(1)) as tested:
        tested.push("a", at=0)
        tested.advance(999)
        assert [(one.value, one.start_ms) for one in tested.collect()] == [(1, 0)]
        tested.restart()
        tested.push("b", at=10)
        tested.end()
        assert tested.collect() == []
        assert tested.collect("late") == ["b"]


def test_what_ended_goes_on_behind_a_restart_where_it_was() -> None:
    with harness(Count(), window=TumblingWindows(1)) as tested:
        tested.push("a", at=1200)
        tested.advance(1100)
        tested.end()
        tested.restart()
        tested.push_all([("b", 1300), ("c", 2100)], at=lambda event: event[1])
        with pytest.raises(PipelineError, match="never decrease: 1099 after 1100"):
            tested.advance(1099)
        tested.advance(1999)
        assert [(one.value, one.start_ms) for one in tested.collect()] == [(1, 1000), (1, 1000)]
        assert tested.collect("late") == []


class EveryOther(Trigger):
    """Fires with every other element, and counts on where it was after a restart."""

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        state = ctx.state(ValueDescriptor[bool]("odd"))
        odd = not state.get()
        state.set(odd)
        return TriggerResult.CONTINUE if odd else TriggerResult.FIRE


def test_trigger_evictor_and_window_function_work_in_windows() -> None:
    with harness(EveryOther(), window=GlobalWindows(), key_by=itself) as tested:
        tested.push("a")
        tested.restart()
        tested.push_all("ba")
        assert [(one.key, one.value) for one in tested.collect()] == [("a", ["a", "a"])]

    with harness(CountEvictor(1), window=TumblingWindows(1)) as tested:
        tested.push_all([1, 2, 3], at=itself)
        tested.end()
        assert [one.value for one in tested.collect()] == [[3]]

    class Spread(ProcessWindowFunction[int]):
        def process(self, key: Any, contents: Any, ctx: WindowContext, out: Callable[[int], None]) -> None:
            out(max(contents) - min(contents))

    with harness(Spread(), window=SessionWindows(1)) as tested:
        tested.push_all([100, 900, 1700], at=itself)
        tested.advance(2_699)
        assert tested.collect(timestamps=True) == [(1600, 2_699)]

    with harness(TumblingWindows(1), allowed_lateness=1) as tested:
        tested.push(1, at=1)
        tested.advance(1500)
        tested.push(2, at=2)
        assert [one.value for one in tested.collect()] == [[1], [1, 2]]


@dataclass(frozen=True)
class Click:
    user: str
    at: int


def segment(stream: Stream[Click]) -> Stream[WindowResult[str, dict[str, Any]]]:
    return (
        stream.filter(lambda click: click.user != "robot")
        .key_by(lambda click: click.user)
        .window(TumblingWindows(1))
        .aggregate(n=Count(), name="clicks")
    )


def test_segment_of_a_pipeline_is_driven_as_a_whole() -> None:
    with harness(segment, types=[Click]) as tested:
        tested.push_all([Click("a", 1), Click("robot", 2), Click("a", 3)], at=lambda click: click.at)
        tested.restart()
        tested.push(Click("b", 4), at=4)
        tested.advance(999)
        assert [(one.key, one.value) for one in tested.collect()] == [("a", {"n": 2}), ("b", {"n": 1})]
        assert tested.metrics()["clicks"]["windows_open"] == 0


def test_segment_of_two_inputs_waits_for_the_slower_one() -> None:
    with harness(lambda left, right: left.union(right.map(str.upper))) as tested:
        tested.push("a")
        tested.push("b", input=1)
        tested.advance(10)
        assert tested.collect_all() == [Element("a"), Element("B")]
        tested.advance(5, input=1)
        assert tested.watermark == 5
        tested.set_idle(input=1)
        assert tested.watermark == 10
        tested.restart()
        assert tested.watermark == 10
        tested.set_idle()
        assert tested.is_idle
        tested.end()
        assert tested.collect_all()[-2:] == [Watermark(MAX_TIMESTAMP), EndOfInput()]


def test_everything_comes_in_its_order() -> None:
    with harness(lambda stream: stream.map(str.upper)) as tested:
        tested.push("a", at=1)
        tested.advance(2)
        tested.set_idle()
        tested.push("b")
        tested.end()
        assert tested.collect_all() == [
            Element("A", 1),
            Watermark(2),
            IdleStatus(True),
            Element("B"),
            Watermark(MAX_TIMESTAMP),
            EndOfInput(),
        ]


def test_side_outputs_are_collected_by_their_tags() -> None:
    with harness(lambda stream: stream.map(int, on_error="route")) as tested:
        tested.push_all(["1", "x"])
        assert tested.collect() == [1]
        assert [one.value for one in tested.collect("failed")] == ["x"]
        assert tested.collect("failed") == []


def test_times_of_many_are_read_by_a_function_or_the_name_of_a_field() -> None:
    ways: list[Any] = ["at", lambda event: event["at"]]
    for at in ways:
        with harness(lambda stream: stream.map("at")) as tested:
            tested.push_all([{"at": 5}, {"at": 7}], at=at)
            assert tested.collect(timestamps=True) == [(5, 5), (7, 7)]
            with pytest.raises(PipelineError, match="at: expected a function, got 5; or the name of a field"):
                tested.push_all([{"at": 5}], at=cast(Any, 5))
            with pytest.raises(PipelineError, match="side: expected a non-empty text, got True"):
                tested.collect(cast(Any, True))


def test_side_output_that_the_segment_reads_is_its_own() -> None:
    def both(stream: Stream[str]) -> Stream[Any]:
        numbers = stream.map(int, on_error="route")
        return numbers.union(numbers.failed.map(lambda failed: failed.value))

    with harness(both) as tested:
        tested.push_all(["1", "x"])
        assert tested.collect() == [1, "x"]
        assert tested.collect("failed") == []


def test_operator_of_ones_own_is_driven() -> None:
    class Counting(Operator):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def process_batch(self, values: Any, timestamps: Any) -> None:
            self.count += len(values)
            self.out.process(self.count, None)

        def snapshot(self) -> Any:
            return self.count

        def restore(self, state: Any) -> None:
            self.count = state

    for what in (Counting(), Counting, lambda: Counting()):
        with harness(what) as tested:
            tested.push_all("ab")
            tested.restart()
            tested.push("c")
            assert tested.collect() == [2, 3]


def test_function_of_the_users_is_closed_and_its_errors_come_out() -> None:
    function = Quiet()
    with harness(function, name="quiet") as tested:
        with pytest.raises(UserFunctionError, match=r"quiet.*a bad one"):
            tested.push("bad")
        tested.restart()
        assert function.closed == 1
        assert function.seen == 1
    assert function.closed == 1, "a copy went on"


def test_no_timer_fires_of_what_is_closed() -> None:
    with harness(Quiet(processing=True)) as tested:
        tested.push("a")
    tested.advance_clock(1000)
    assert tested.collect() == []


def test_value_that_no_checkpoint_keeps_is_refused() -> None:
    class Keeps(KeyedProcessFunction[Any, Any]):
        def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
            ctx.state(ValueDescriptor[Any]("kept")).set(value)

    with harness(Keeps()) as tested:
        tested.push(threading.Lock())
        with pytest.raises(CheckpointError, match=r"tested.*lock"):
            tested.snapshot()


def test_state_of_other_windows_is_refused() -> None:
    with harness(Count(), window=TumblingWindows(1)) as tested:
        tested.push("a", at=0)
        snapshot = tested.snapshot()
    with (
        harness(Count(), window=TumblingWindows(2)) as other,
        pytest.raises(CheckpointError, match="changed"),
    ):
        other.restore(snapshot)


def test_state_of_another_kind_of_step_is_refused_as_a_job_does() -> None:
    class Size(ProcessWindowFunction[int]):
        def process(self, key: str, contents: Any, ctx: WindowContext, out: Emitter[int]) -> None:
            out(len(contents))

    windows = TumblingWindows(1)
    with harness(windows) as tested:
        tested.push("a", at=0)
        snapshot = tested.snapshot()
    with (
        harness(Size(), window=windows) as other,
        pytest.raises(CheckpointError, match="'tested' was a step 'collect', and is a step 'process_window'"),
    ):
        other.restore(snapshot)


class Locked(Quiet):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_object_that_cannot_be_copied_is_made_by_a_function() -> None:
    with harness(Locked()) as tested, pytest.raises(PipelineError, match="give a function that makes it"):
        tested.restart()
    with harness(lambda: Locked()) as tested:
        tested.restart()


class Gap(Quiet):
    def __init__(self, gap: int) -> None:
        super().__init__()


class Paired(KeyedCoProcessFunction[int, int, tuple[int, int]]):
    def open(self, ctx: KeyedContext) -> None:
        self.left = ctx.state(ValueDescriptor[int]("left"))

    def process_left(self, value: int, ctx: KeyedContext, out: Emitter[tuple[int, int]]) -> None:
        self.left.set(value)

    def process_right(self, value: int, ctx: KeyedContext, out: Emitter[tuple[int, int]]) -> None:
        out((self.left.get(0), value))


def test_function_of_two_inputs_is_given_two_streams() -> None:
    with harness(
        lambda left, right: left.key_by(itself).connect(right.key_by(itself)).process(Paired())
    ) as tested:
        tested.push(3)
        tested.restart()
        tested.push(3, input=1)
        assert tested.collect() == [(3, 3)]


class Asks(AsyncFunction[int, int]):
    async def invoke(self, value: int) -> int:
        return value


async def call(value: int) -> int:
    return value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: harness(3), "what: expected a process function"),
        (lambda: harness(Asks()), "run_virtual"),
        (lambda: harness(Paired()), r"what: .*; one of several inputs .* harness\(lambda left, right: "),
        (lambda: harness(call), r"what: .* got <function call>; what waits for calls .*run_virtual"),
        (lambda: harness(lambda stream: stream.async_map(call)), "'async_map': a harness .* waits for calls"),
        (lambda: harness(lambda stream: stream.map(str).to([])), "returns a stream"),
        (lambda: harness(lambda stream: [stream.to([]), stream][1]), "leave out the sinks"),
        (lambda: harness(Count()), "window: a Count works in windows"),
        (lambda: harness(Count(), window=cast(Any, 60)), "window: expected a WindowAssigner"),
        (lambda: harness(Operator(), key_by=itself), "key_by: an operator has its own; leave it out"),
        (lambda: harness(Quiet(), window=TumblingWindows(1)), "window: a process function is in no window"),
        (lambda: harness(Quiet, allowed_lateness=5), "allowed_lateness: a process function is in no window"),
        (
            lambda: harness(TumblingWindows(1), window=TumblingWindows(1)),
            "window: the windows are what is tested",
        ),
        (
            lambda: harness(lambda stream: stream.map(str), key_by=itself),
            "key_by: the function says so of its steps",
        ),
        (lambda: harness(max), "what: expected a process function"),
        (lambda: harness(lambda *, gap: Quiet()), r"what: expected a function that takes \(\), got"),
        (lambda: harness(Gap), r"what: expected a function that takes \(\), got one that takes \(gap"),
        (lambda: harness(Quiet(), name=""), "name: expected"),
        (lambda: harness(Quiet(), codec="xml"), "codec: expected"),
        (lambda: harness(Quiet()).push("a", input=1), "input: there are 1"),
        (lambda: harness(Quiet()).restore(cast(Any, b"")), "snapshot: expected"),
    ],
)
def test_what_cannot_be_driven_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        make()


def test_time_does_not_run_backwards_and_nothing_follows_the_end() -> None:
    with harness(Quiet()) as tested:
        tested.advance(10)
        with pytest.raises(PipelineError, match="watermarks never decrease: 9 after 10"):
            tested.advance(9)
        tested.advance_clock(10)
        with pytest.raises(PipelineError, match="does not run backwards"):
            tested.advance_clock(9)
        tested.end()
        with pytest.raises(PipelineError, match="has ended"):
            tested.push("a")
