"""Operators with several inputs: elements come by port, and control elements as if there were one input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import Items
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.operators.base import Operator
from asyncstream.operators.ports import MultiInput
from asyncstream.operators.spec import Spec
from asyncstream.plan import Graph, Input, OperatorStep, Output, SourceStep, Wiring
from tests.operators.recorder import END, IDLE, RESTORED, Recorder, W, record


class Tagged(MultiInput):
    """Elements with the name of their port."""

    def __init__(self, *, holds_back: bool = True) -> None:
        super().__init__(self.process_left, self.process_right, holds_back=holds_back)

    def process_left(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.out.process_batch([f"left {value}" for value in values], timestamps)

    def process_right(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.out.process_batch([f"right {value}" for value in values], timestamps)


class TaggedSpec(Spec):
    def build(self) -> Tagged:
        return Tagged()


def tagged(*, holds_back: bool = True) -> tuple[Tagged, Recorder]:
    operator = Tagged(holds_back=holds_back)
    return operator, record(operator)


def test_elements_come_by_port() -> None:
    operator, recorder = tagged()
    operator.port(1).process_batch([1, 2], [5, 6])
    operator.port(0).process(3, None)
    assert recorder.seen == [("right 1", 5), ("right 2", 6), ("left 3", None)]


def test_operator_with_one_input_is_its_own_port() -> None:
    operator = Operator()
    assert operator.port(0) is operator


def test_input_that_comes_back_behind_holds_back_or_is_left_out_until_it_has_caught_up() -> None:
    for holds_back, seen in ((True, [(W, 10), (W, 15), (W, 20)]), (False, [(W, 10), (W, 20)])):
        operator, recorder = tagged(holds_back=holds_back)
        left, right = operator.port(0), operator.port(1)
        right.set_idle(True)
        left.advance_watermark(10)
        right.set_idle(False)
        right.advance_watermark(5)
        left.advance_watermark(20)
        if holds_back:
            right.advance_watermark(15)
        right.advance_watermark(20)
        assert recorder.seen == seen


@pytest.mark.parametrize("holds_back", [True, False])
def test_watermark_that_an_idle_input_has_given_counts_when_it_is_back(holds_back: bool) -> None:
    operator, recorder = tagged(holds_back=holds_back)
    left, right = operator.port(0), operator.port(1)
    left.advance_watermark(3)
    right.set_idle(True)
    right.advance_watermark(7)  # a step upstream that follows the clock gives it once
    right.set_idle(False)
    left.advance_watermark(9)
    assert recorder.seen == [(W, 3), (W, 7)]


def test_end_comes_when_all_inputs_have_ended() -> None:
    operator, recorder = tagged()
    for port in operator.ports:
        assert recorder.seen == []
        port.advance_watermark(MAX_TIMESTAMP)
        port.end_input()
    assert recorder.seen == [(W, MAX_TIMESTAMP), (END,)]


def test_restored_operator_says_downstream_how_far_event_time_was() -> None:
    operator, _ = tagged()
    operator.port(0).advance_watermark(7)
    operator.port(1).advance_watermark(9)
    copy, recorder = tagged()
    copy.valve.restore(operator.valve.snapshot())
    copy.resume()
    copy.port(0).advance_watermark(7)
    copy.port(0).advance_watermark(8)
    assert recorder.seen == [(RESTORED, 7), (W, 8)]


STEPS = st.one_of(
    st.tuples(st.just(W), st.integers(0, 2), st.integers(-5, 30)),
    st.tuples(st.just(IDLE), st.integers(0, 2), st.booleans()),
)


@given(st.lists(STEPS, max_size=40))
def test_inputs_that_hold_back_give_the_least_watermark_of_those_not_idle(
    steps: list[tuple[str, int, Any]],
) -> None:
    class Three(MultiInput):
        def __init__(self) -> None:
            super().__init__(*[self.process_batch] * 3, holds_back=True)

    operator = Three()
    recorder = record(operator)
    latest, idle, reached = [MIN_TIMESTAMP] * 3, [False] * 3, MIN_TIMESTAMP
    for kind, number, what in steps:
        if kind == W:
            if idle[number]:
                continue  # an input that is idle says so until it has something to say
            operator.port(number).advance_watermark(what)
            latest[number] = max(latest[number], what)
        else:
            operator.port(number).set_idle(what)
            idle[number] = what
        awaited = [mark for mark, is_idle in zip(latest, idle, strict=True) if not is_idle]
        reached = max(reached, min(awaited) if awaited else max(latest))
        told = [entry[1] for entry in recorder.seen if entry[0] == W]
        assert (told[-1] if told else MIN_TIMESTAMP) == reached
        assert told == sorted(set(told))


@pytest.mark.parametrize("holds_back", [True, False])
def test_a_watermark_costs_the_same_however_many_inputs_wait_for_another(holds_back: bool) -> None:
    def calls(inputs: int) -> int:
        class Many(MultiInput):
            def __init__(self) -> None:
                super().__init__(*[self.process_batch] * inputs, holds_back=holds_back)

        count = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        operator = Many()
        recorder = record(operator)
        for number, port in enumerate(operator.ports):
            port.advance_watermark(number)  # each is ahead of those before
        operator.port(0).advance_watermark(0)
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            for at_ms in range(inputs, inputs + 10):
                operator.port(inputs - 1).advance_watermark(at_ms)
        finally:
            sys.setprofile(before)
        assert recorder.seen == [(W, 0)]
        return count

    assert calls(100) == calls(3)


def test_wiring_connects_by_the_place_of_the_input() -> None:
    """Also where one output is read by both ports, and whatever order the operators are wired in."""
    graph = Graph()
    graph.add(SourceStep("source", Items([1])))
    graph.add(OperatorStep("first", "map", (Input(Output("source")),), Spec()))
    inputs = (Input(Output("source")), Input(Output("first")))
    graph.add(OperatorStep("both", "tagged", inputs, TaggedSpec()))
    graph.add(OperatorStep("same", "tagged", (Input(Output("source")),) * 2, TaggedSpec()))
    operators = {step.name: step.spec.build() for step in graph if isinstance(step, OperatorStep)}
    wiring = Wiring(graph, operators)
    both, same = Recorder(), Recorder()
    operators["both"].out, operators["same"].out = both, same
    wiring.reader_of(Output("source")).process_batch(["x"], None)
    assert both.values() == ["right x", "left x"]
    assert same.values() == ["left x", "right x"]


@pytest.mark.parametrize("number", [0, 1])
def test_graph_tells_which_port_reads_an_output(number: int) -> None:
    graph = Graph()
    graph.add(OperatorStep("one", "map", (), Spec()))
    graph.add(OperatorStep("two", "map", (), Spec()))
    outputs = [Output("one"), Output("two")]
    graph.add(OperatorStep("both", "tagged", tuple(map(Input, outputs)), TaggedSpec()))
    assert [(step.name, port) for step, port in graph.ports(outputs[number])] == [("both", number)]
