"""Functions with several inputs, as a user connects streams for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import AscendingTimestamps, KeyedContext, KeyedCoProcessFunction, Pipeline, PipelineError
from asyncstream.errors import UserFunctionError
from asyncstream.joins.co_process import KeyedCoProcessOperator
from asyncstream.operators.emitting import Emitter
from asyncstream.state import ListDescriptor
from asyncstream.testing import harness
from tests.joins.latest import Latest
from tests.operators.recorder import record
from tests.state.operators import results


class Match(KeyedCoProcessFunction[Any, Any, Any]):
    """Pairs elements (key, ms, value) of both inputs; what waits longer than 10 ms goes aside."""

    sides = ("alone",)

    def open(self, ctx: KeyedContext) -> None:
        self.waiting = ctx.state(ListDescriptor[Any]("waiting"))

    def process_left(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        self.handle(0, value, ctx, out)

    def process_right(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        self.handle(1, value, ctx, out)

    def handle(self, side: int, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        waiting = list(self.waiting.get())
        for place, (other_side, other) in enumerate(waiting):
            if other_side != side:
                out((other, value) if side else (value, other))
                self.waiting.set(waiting[:place] + waiting[place + 1 :])
                return
        self.waiting.add((side, value))
        ctx.register_event_timer(value[1] + 10)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        waiting = list(self.waiting.get())
        for _, value in waiting:
            if value[1] + 10 <= timestamp:
                ctx.side("alone", value)
        self.waiting.set([one for one in waiting if one[1][1] + 10 > timestamp])


class Held(KeyedCoProcessFunction[Any, Any, Any]):
    """Gives the numbers of the inputs from which elements came, when event time has come to them."""

    def open(self, ctx: KeyedContext) -> None:
        self.numbers = ctx.state(ListDescriptor[int]("numbers"))

    def process_input(self, number: int, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        self.numbers.add(number)
        ctx.register_event_timer(ctx.timestamp)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out((ctx.key, list(self.numbers.get())))


def key_of(value: Any) -> Any:
    return value[0]


def timed(pipeline: Pipeline, elements: list[Any], name: str) -> Any:
    return pipeline.source(elements, name=name).event_time(lambda value: value[1], AscendingTimestamps())


ORDERS = [("a", 1, "order"), ("b", 2, "order"), ("c", 30, "order")]
PAYMENTS = [("b", 4, "paid"), ("a", 5, "paid"), ("d", 20, "paid")]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_state_and_timers_of_a_key_are_shared_by_both_inputs() -> None:
    pipeline = Pipeline()
    orders, payments = timed(pipeline, ORDERS, "orders"), timed(pipeline, PAYMENTS, "payments")
    matched: list[Any] = []
    alone: list[Any] = []
    found = orders.key_by(key_of).connect(payments.key_by(key_of)).process(Match(), name="match")
    found.to(matched)
    found.side("alone").to(alone)
    await pipeline.run()
    assert sorted((left[2], right[2], left[0]) for left, right in matched) == [
        ("order", "paid", "a"),
        ("order", "paid", "b"),
    ]
    assert sorted(value[0] for value in alone) == ["c", "d"]
    assert "co_process" in pipeline.describe()
    assert "function=Match" in pipeline.describe()


def test_streams_without_keys_share_the_state_of_one(tmp_path: Path) -> None:
    """And what was there is found again in the next run."""
    found: list[str] = []
    for left, right in (([], [7]), ([1, 2], [7])):
        pipeline = Pipeline("latest")
        one, other = pipeline.source(left, name="left"), pipeline.source(right, name="right")
        one.connect(other).process(Latest(), name="latest").to(found, name="found")
        pipeline.run_blocking(checkpoints=tmp_path)
    assert found == ["None: 1 with 7", "None: 2 with 7"]


class Numbered(KeyedCoProcessFunction[Any, Any, Any]):
    def open(self, ctx: KeyedContext) -> None:
        self.seen = ctx.state(ListDescriptor[int]("seen"))

    def process_input(self, number: int, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        self.seen.add(number)
        out((ctx.key, value, sorted(self.seen.get())))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_more_than_two_streams_come_by_their_number() -> None:
    pipeline = Pipeline()
    one, two, three = (pipeline.source([n]).key_by(lambda value: value % 2) for n in (1, 2, 3))
    found: list[Any] = []
    one.connect(two, three).process(Numbered()).to(found)
    await pipeline.run()
    assert sorted(found) == [(0, 2, [1]), (1, 1, [0]), (1, 3, [0, 2])]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_another_number_of_streams_goes_on_with_state_and_time(before: int, after: int) -> None:
    def connected(first: Any, *others: Any) -> Any:
        return first.key_by(key_of).connect(*(each.key_by(key_of) for each in others)).process(Held())

    def of(count: int) -> Any:
        def define(first: Any, second: Any, third: Any) -> Any:
            third.discard()
            return connected(*(first, second, third)[:count])

        return define

    with harness(of(before)) as earlier:
        for number in range(before):
            earlier.push(("k", number), at=20, input=number)
            earlier.advance(10, input=number)
        snapshot = earlier.snapshot()
    with harness(of(after)) as tested:
        tested.restore(snapshot)
        for number in range(after):
            assert tested.collect() == []  # the last is waited for
            tested.advance(20, input=number)
        assert tested.collect() == [("k", list(range(before)))]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_element_that_fails_on_either_input_is_routed() -> None:
    class Fails(KeyedCoProcessFunction[int, int, int]):
        def process_left(self, value: int, ctx: KeyedContext, out: Emitter[int]) -> None:
            out(value)
            if value == 2:
                raise ValueError("two")

        process_right = process_left

    pipeline = Pipeline()
    one, other = pipeline.source([1, 2]).key_by(str), pipeline.source([2, 3]).key_by(str)
    both = one.connect(other).process(Fails(), on_error="route")
    found: list[int] = []
    failed: list[Any] = []
    both.to(found)
    both.failed.to(failed)
    await pipeline.run()
    assert sorted(found) == [1, 3]
    assert [call.value for call in failed] == [2, 2]


class Refusing(KeyedCoProcessFunction[int, int, int]):
    def process_input(self, number: int, value: int, ctx: KeyedContext, out: Any) -> None:
        raise ValueError("no")


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_error_names_step_and_element() -> None:
    pipeline = Pipeline()
    one, other = pipeline.source([1]).key_by(str), pipeline.source([2]).key_by(str)
    one.connect(other).process(Refusing(), name="both").discard()
    with pytest.raises(UserFunctionError, match=r"'both'.*ValueError: no, on element [12]$"):
        await pipeline.run()


def test_what_cannot_be_connected_is_refused() -> None:
    pipeline, other = Pipeline(), Pipeline()
    numbers, keyed = pipeline.source([1]), pipeline.source([1]).key_by(str)
    with pytest.raises(PipelineError, match="at least one other stream"):
        numbers.connect()  # type: ignore[call-overload]
    with pytest.raises(PipelineError, match="expected a stream, got 5"):
        numbers.connect(5)  # type: ignore[call-overload]
    with pytest.raises(PipelineError, match="belongs to another pipeline"):
        numbers.connect(other.source([1]))
    with pytest.raises(PipelineError, match="some of the streams are keyed and some are not"):
        numbers.connect(keyed)
    with pytest.raises(PipelineError, match="expected a KeyedCoProcessFunction"):
        numbers.connect(numbers).process(5)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="overrides process_input, for 3 streams; Latest does not"):
        numbers.connect(numbers, numbers).process(Latest())
    with pytest.raises(PipelineError, match="expected one broadcast stream alone"):
        numbers.connect(numbers, numbers.broadcast())  # type: ignore[call-overload]


def test_function_that_would_have_to_be_awaited_is_refused() -> None:
    class Awaited(KeyedCoProcessFunction[int, int, int]):
        def process_left(self, value: int, ctx: Any, out: Any) -> None:
            pass

        async def process_right(self, value: int, ctx: Any, out: Any) -> None:  # type: ignore[override]
            pass

    numbers = Pipeline().source([1])
    with pytest.raises(PipelineError, match="process_right: expected a plain method"):
        numbers.connect(numbers).process(Awaited())


STEPS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from("abcd"), st.integers(0, 40)), max_size=12)


@given(before=STEPS, after=STEPS, watermark=st.integers(0, 40))
def test_operators_of_parts_give_what_one_operator_gives(
    before: list[Any], after: list[Any], watermark: int
) -> None:
    def started(state: Any = None) -> Any:
        operator = KeyedCoProcessOperator((key_of, key_of), Match())
        recorder = record(operator)
        operator.side = {"alone": recorder}
        if state is not None:
            operator.restore(state)
            operator.resume()
        recorder.seen.clear()
        return operator, recorder

    def feed(operator: Any, steps: list[Any], until: int) -> None:
        for port, key, at_ms in steps:
            operator.port(port).process((key, at_ms), at_ms)
        for port in operator.ports:
            port.advance_watermark(until)

    whole, recorder = started()
    feed(whole, before, watermark)
    state = whole.snapshot()
    parts = whole.divided(state, lambda key: ord(key) % 2, {0, 1})
    recorder.seen.clear()
    feed(whole, after, 100)
    expected = results(recorder)

    def go_on(state: Any, steps: list[Any]) -> list[str]:
        operator, recorder = started(state)
        feed(operator, steps, 100)
        return results(recorder)

    shares = (go_on(part, [step for step in after if ord(step[1]) % 2 == n]) for n, part in parts.items())
    assert sorted(line for lines in shares for line in lines) == expected
    assert go_on(whole.united([parts[1], parts[0]]), after) == expected
