"""The keyed process operator: state, timers, outputs and errors of a user's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.errors import PipelineError, UserFunctionError
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.emitting import Emitter
from asyncstream.operators.keyed_context import KeyedContext, TimeDomain
from asyncstream.operators.process import KeyedProcessFunction, KeyedProcessOperator
from asyncstream.state import ValueDescriptor
from tests.windowing.harness import Harness

Element = tuple[str, int]


class Silence(KeyedProcessFunction[Element, Any]):
    """Tells of each element, and of a key silent for 10 ms of event time or 100 of processing time."""

    closed = 0

    def open(self, ctx: KeyedContext) -> None:
        self.last = ctx.state(ValueDescriptor[int]("last"))

    def process_element(self, value: Element, ctx: KeyedContext, out: Emitter[Any]) -> None:
        assert ctx.domain is None
        last = self.last.get()
        if last is not None:
            ctx.delete_event_timer(last + 10)
            ctx.delete_processing_timer(last + 100)
        self.last.set(ctx.timestamp)
        ctx.register_event_timer(ctx.timestamp + 10)
        ctx.register_processing_timer(ctx.timestamp + 100)
        out(("seen", ctx.key, value[1], ctx.watermark, ctx.now_ms))
        ctx.side("aside", value)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out(("silent", ctx.key, ctx.domain, ctx.watermark, ctx.now_ms))
        ctx.side("aside", "silent")
        self.last.clear()

    def close(self) -> None:
        self.closed += 1


def harness(function: Callable[[], KeyedProcessFunction[Any, Any]], *side: str) -> Harness:
    return Harness(lambda: KeyedProcessOperator(lambda value: value[0], function()), side=side)


def test_elements_and_timers_reach_the_function_with_their_key() -> None:
    run = harness(Silence, "aside")
    run.element(("a", 1), 5)
    run.element(("b", 2), 6)
    run.element(("a", 3), 9)
    run.watermark(16)
    run.watermark(30)
    assert run.records == [
        ("out", ("seen", "a", 1, MIN_TIMESTAMP, 0), 5),
        ("aside", ("a", 1), 5),
        ("out", ("seen", "b", 2, MIN_TIMESTAMP, 0), 6),
        ("aside", ("b", 2), 6),
        ("out", ("seen", "a", 3, MIN_TIMESTAMP, 0), 9),
        ("aside", ("a", 3), 9),
        ("out", ("silent", "b", TimeDomain.EVENT, 16, 0), 16),
        ("aside", "silent", 16),
        ("wm", 16),
        ("out", ("silent", "a", TimeDomain.EVENT, 30, 0), 19),
        ("aside", "silent", 19),
        ("wm", 30),
    ]


def test_a_processing_timer_emits_without_timestamp_but_aside_with_one() -> None:
    run = harness(Silence, "aside")
    run.element(("a", 1), 5)
    assert run.woken == [105]
    run.records.clear()
    run.time(105)
    assert run.records == [
        ("out", ("silent", "a", TimeDomain.PROCESSING, MIN_TIMESTAMP, 105), None),
        ("aside", "silent", 105),
    ]


def test_a_processing_timer_that_is_pending_at_the_end_of_input_does_not_fire() -> None:
    run = harness(Silence, "aside")
    run.element(("a", 1), 5)
    run.operator.end_input()
    run.records.clear()
    run.time(105)
    assert run.records == []


class Timed(KeyedProcessFunction[Element, Any]):
    """Tells what it is told of time."""

    def process_element(self, value: Element, ctx: KeyedContext, out: Emitter[Any]) -> None:
        ctx.side("aside", "seen")
        if value[1] == 2:
            raise ValueError(ctx.timestamp_or_none)
        out((ctx.timestamp if value[1] else None, ctx.timestamp_or_none))

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out((ctx.timestamp, ctx.timestamp_or_none))


def test_an_element_without_a_timestamp_says_so_when_asked_for_it() -> None:
    run = harness(Timed, "aside")
    run.element(("a", 1), 5)
    run.element(("a", 0), None)
    run.element(("a", 1), 6)
    run.operator.process_batch([("a", 1), ("a", 0), ("a", 0), ("a", 1)], [7, None, None, 8])
    run.operator.process_batch([("a", 0), ("a", 0)], None)
    stamps = [5, None, 6, 7, None, None, 8, None, None]
    told = [record for record in run.records if record[0] != "wm"]
    assert told[::2] == [("aside", "seen", stamp) for stamp in stamps]
    assert told[1::2] == [("out", (stamp, stamp), stamp) for stamp in stamps]
    without: tuple[Timestamps, ...] = (None, [None])
    for each in without:
        with pytest.raises(UserFunctionError, match=r"has no timestamp; put \.event_time\(\.\.\.\)"):
            run.operator.process_batch([("a", 1)], each)


def test_an_element_that_fails_leaves_no_timestamp_behind() -> None:
    run = Harness(lambda: KeyedProcessOperator(lambda value: value[0], Timed(), "skip"), side=("aside",))
    run.operator.process_batch([("a", 1), ("a", 2), ("a", 0), ("a", 2), ("a", 1)], [7, None, None, 9, 8])
    assert run.outputs() == [(7, 7), (None, None), (8, 8)]


@pytest.mark.parametrize("timestamp", [None, 5])
def test_what_no_context_has_is_told_of_with_the_class_that_users_know(timestamp: int | None) -> None:
    class Other(KeyedProcessFunction[Element, int]):
        def process_element(self, value: Element, ctx: Any, out: Emitter[int]) -> None:
            ctx.set_timer(5)

    with pytest.raises(UserFunctionError, match="'KeyedContext' object has no attribute 'set_timer'"):
        harness(Other).element(("a", 1), timestamp)


def test_a_context_of_ones_own_stays_one() -> None:
    class Own(KeyedContext):
        def twice(self) -> int:
            return 2 * self.timestamp

    class Keeps(Timed):
        def open(self, ctx: KeyedContext) -> None:
            self.ctx = ctx

    function = Keeps()
    Harness(lambda: KeyedProcessOperator(lambda value: value[0], function), side=("aside",))
    given = function.ctx
    ctx = Own(given._out, given._state, given._timers, given._clock)
    for timestamp in (5, 6):
        ctx._forget_timestamp()
        assert isinstance(ctx, Own)
        assert ctx.timestamp_or_none is None
        ctx.timestamp = timestamp
        assert type(ctx) is Own
        assert ctx.twice() == 2 * timestamp


def test_value_is_written_by_set_alone() -> None:
    class Assigns(KeyedProcessFunction[Element, int]):
        def open(self, ctx: Any) -> None:
            self.last = ctx.state(ValueDescriptor[int]("last"))

        def process_element(self, value: Element, ctx: KeyedContext, out: Emitter[int]) -> None:
            out(self.last.get(7))
            self.last.value = 5

    with pytest.raises(UserFunctionError, match="'ValueState' object has no attribute 'value'"):
        harness(Assigns).element(("a", 1), 5)


def test_there_is_no_timestamp_before_the_first_element() -> None:
    class Early(Timed):
        def open(self, ctx: KeyedContext) -> None:
            assert ctx.timestamp_or_none is None
            self.before = ctx.timestamp

    with pytest.raises(PipelineError, match=r"^step 'windows': ctx\.timestamp: "):
        harness(Early)


@pytest.mark.parametrize(
    "use",
    [
        lambda ctx, last: last.set(5),
        lambda ctx, last: ctx.register_event_timer(5),
        lambda ctx, last: ctx.register_processing_timer(5),
    ],
    ids=["state", "event time", "processing time"],
)
def test_there_is_no_key_before_the_first_element(use: Callable[[KeyedContext, Any], object]) -> None:
    class Early(Silence):
        def open(self, ctx: KeyedContext) -> None:
            super().open(ctx)
            use(ctx, self.last)

    with pytest.raises(PipelineError, match=r"^step 'windows': open comes before the first key"):
        harness(Early)


@pytest.mark.parametrize("domain", TimeDomain)
def test_a_timer_that_nothing_would_come_of_is_refused(domain: TimeDomain) -> None:
    class Deaf(KeyedProcessFunction[Element, int]):
        def process_element(self, value: Element, ctx: KeyedContext, out: Emitter[int]) -> None:
            if domain is TimeDomain.EVENT:
                ctx.register_event_timer(10)
            ctx.register_processing_timer(10)

    run = harness(Deaf)
    with pytest.raises(UserFunctionError, match="Deaf has set a timer and has no on_timer"):
        run.element(("a", 1), 5)


class Later(KeyedProcessFunction[Element, Any]):
    """Has a timer so long after each element as its value says, and emits for it on both outputs."""

    def process_element(self, value: Element, ctx: KeyedContext, out: Emitter[Any]) -> None:
        ctx.register_event_timer(ctx.timestamp + value[1])
        ctx.register_processing_timer(ctx.timestamp + value[1])

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out(timestamp)
        ctx.side("aside", timestamp)


@pytest.mark.parametrize(("edge", "by_ms"), [(MAX_TIMESTAMP, 60_000), (MIN_TIMESTAMP, -60_000)])
def test_what_a_timer_beyond_the_ends_of_time_emits_carries_a_timestamp_that_there_is(
    edge: int, by_ms: int
) -> None:
    """As behind windows of counts, whose results are of the end of time."""
    run = harness(Later, "aside")
    run.element(("a", by_ms), edge)
    run.watermark(MAX_TIMESTAMP)
    emitted = [("out", edge + by_ms, edge), ("aside", edge + by_ms, edge), ("wm", MAX_TIMESTAMP)]
    assert run.records == emitted
    run.records.clear()
    run.time(max(0, edge + by_ms))
    assert run.records == [("out", edge + by_ms, None), ("aside", edge + by_ms, edge)]


def test_nothing_is_left_of_a_key_that_is_done() -> None:
    run = harness(Silence, "aside")
    run.element(("a", 1), 5)
    run.time(105)
    run.watermark(15)
    metrics = run.operator.metrics()
    assert metrics == {"state_entries": 0, "event_timers": 0, "processing_timers": 0}


def test_a_restart_keeps_state_and_timers() -> None:
    run = harness(Silence, "aside")
    run.element(("a", 1), 5)
    run.restart()
    run.element(("a", 2), 8)
    run.restart()
    run.watermark(15)
    assert run.outputs()[2:] == []
    run.watermark(18)
    assert [value[0] for value in run.outputs()] == ["silent"]


def test_results_before_a_failure_are_handed_on_and_the_error_names_step_and_element() -> None:
    class Picky(KeyedProcessFunction[Element, int]):
        def process_element(self, value: Element, ctx: KeyedContext, out: Emitter[int]) -> None:
            out(1 // value[1])

    run = harness(Picky)
    with pytest.raises(UserFunctionError, match=r"step 'windows': ZeroDivisionError.*\('b', 0\)") as caught:
        run.operator.process_batch([("a", 1), ("b", 0), ("c", 1)], None)
    assert caught.value.element == ("b", 0)
    assert run.outputs() == [1]


def test_a_failing_timer_is_named_with_its_key_and_time() -> None:
    class Failing(Silence):
        def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
            raise RuntimeError("no")

    run = harness(Failing, "aside")
    run.element(("a", 1), 5)
    with pytest.raises(UserFunctionError, match=r"RuntimeError: no, on the timer of key 'a' at 15$"):
        run.watermark(15)


def test_what_timers_have_emitted_before_one_fails_is_handed_on() -> None:
    class Failing(Silence):
        def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
            out(timestamp)
            if timestamp == 17:
                raise RuntimeError("no")

    run = harness(Failing, "aside")
    for key, timestamp in (("a", 5), ("b", 7), ("c", 9)):
        run.element((key, 1), timestamp)
    run.records.clear()
    with pytest.raises(UserFunctionError):
        run.watermark(20)
    assert run.records == [("out", 15, 15), ("out", 17, 17)]


def test_an_unhashable_key_is_an_error_that_names_the_element() -> None:
    run = Harness(lambda: KeyedProcessOperator(lambda value: [value[0]], Silence()))
    with pytest.raises(UserFunctionError, match="unhashable"):
        run.element(("a", 1), 5)


def test_closes_its_function() -> None:
    function = Silence()
    operator = KeyedProcessOperator(lambda value: value[0], function)
    operator.close()
    assert function.closed == 1


def test_a_function_without_process_element_says_so() -> None:
    run = harness(KeyedProcessFunction)
    with pytest.raises(UserFunctionError, match="does not override process_element"):
        run.element(("a", 1), 5)


def test_what_a_function_returns_goes_nowhere_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Returning(KeyedProcessFunction[Any, Any]):
        def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> Any:
            return value

    run = harness(Returning)
    for number in range(3):
        run.element(("a", number), 5)
    (record,) = caplog.records
    assert "returned a value of type tuple, which goes nowhere; emit with out(...)" in record.message


@pytest.mark.parametrize("domain", ["event", "processing"])
def test_function_that_sets_its_timer_again_and_again_is_stopped(
    monkeypatch: pytest.MonkeyPatch, domain: str
) -> None:
    monkeypatch.setattr("asyncstream.state.timer_queue._RUNAWAY", 1000)

    class Again(KeyedProcessFunction[int, int]):
        def process_element(self, value: int, ctx: KeyedContext, out: Emitter[int]) -> None:
            getattr(ctx, f"register_{domain}_timer")(value)

        def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[int]) -> None:
            getattr(ctx, f"register_{domain}_timer")(timestamp)

    operator = KeyedProcessOperator(lambda value: "all", Again())
    operator.open(OperatorContext(name="again"))
    operator.process(7, 0)
    with pytest.raises(
        UserFunctionError, match=r"'again'.*set later ones.*, on the timer of key 'all' at 7$"
    ):
        operator.advance_watermark(8) if domain == "event" else operator.advance_clock(8)


def test_function_that_sets_timers_for_ever_is_stopped_at_the_end_of_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flink goes on for ever here."""
    monkeypatch.setattr("asyncstream.operators.process.RUNAWAY", 1000)

    class Heartbeat(KeyedProcessFunction[int, int]):
        def process_element(self, value: int, ctx: KeyedContext, out: Emitter[int]) -> None:
            ctx.register_event_timer(value)

        def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[int]) -> None:
            out(timestamp)
            ctx.register_event_timer(timestamp + 60_000)

    operator = KeyedProcessOperator(lambda value: "all", Heartbeat())
    operator.open(OperatorContext(name="heartbeat"))
    operator.process(0, 0)
    operator.advance_watermark(600_000)

    with pytest.raises(UserFunctionError, match="set none when ctx"):
        operator.advance_watermark(MAX_TIMESTAMP)


def test_each_timer_that_is_left_at_the_end_of_input_may_set_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the one that is there already, as a function does that puts off cleaning up."""
    monkeypatch.setattr("asyncstream.operators.process.RUNAWAY", 10)

    class Cleaning(KeyedProcessFunction[Element, int]):
        def process_element(self, value: Element, ctx: KeyedContext, out: Emitter[int]) -> None:
            ctx.register_event_timer(1)
            ctx.register_event_timer(1000)

        def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[int]) -> None:
            if timestamp == 1000:
                out(ctx.key)
            else:
                ctx.register_event_timer(1000)

    run = harness(Cleaning)
    for key in range(100):
        run.element((key, 0), 0)
    run.watermark(MAX_TIMESTAMP)
    assert sorted(value for _, value, _ in run.records[:-1]) == [*range(100)]
