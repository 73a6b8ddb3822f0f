from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.operators.union import Union
from tests.operators.recorder import END, IDLE, Recorder, W, record


def union_of(inputs: int) -> tuple[Union, Recorder]:
    union = Union(inputs)
    return union, record(union)


def test_elements_come_as_they_come() -> None:
    union, recorder = union_of(2)
    union.ports[1].process("b", 5)
    union.ports[0].process_batch(["a", "c"], [1, 9])
    assert recorder.seen == [("b", 5), ("a", 1), ("c", 9)]


def test_watermark_is_that_of_the_slowest_input() -> None:
    union, recorder = union_of(2)
    union.ports[0].advance_watermark(10)
    assert recorder.seen == []
    union.ports[1].advance_watermark(5)
    union.ports[1].advance_watermark(7)
    union.ports[1].advance_watermark(20)
    assert recorder.seen == [(W, 5), (W, 7), (W, 10)]


def test_watermark_that_goes_back_is_ignored() -> None:
    union, recorder = union_of(1)
    union.ports[0].advance_watermark(10)
    union.ports[0].advance_watermark(9)
    assert recorder.seen == [(W, 10)]


def test_idle_input_is_not_waited_for() -> None:
    union, recorder = union_of(2)
    union.ports[0].advance_watermark(10)
    union.ports[1].set_idle(True)
    assert recorder.seen == [(W, 10)]


def test_input_that_comes_back_is_waited_for_but_turns_nothing_back() -> None:
    union, recorder = union_of(2)
    union.ports[1].set_idle(True)
    union.ports[0].advance_watermark(10)
    union.ports[1].set_idle(False)
    union.ports[1].advance_watermark(5)
    union.ports[0].advance_watermark(20)
    assert recorder.seen == [(W, 10)]
    union.ports[1].advance_watermark(15)
    assert recorder.seen == [(W, 10), (W, 15)]


def test_last_input_that_turns_idle_leaves_the_largest_watermark() -> None:
    union, recorder = union_of(2)
    union.ports[0].advance_watermark(10)
    union.ports[1].advance_watermark(5)
    union.ports[0].set_idle(True)
    union.ports[1].set_idle(True)
    assert recorder.seen == [(W, 5), (W, 10), (IDLE, True)]
    union.ports[0].set_idle(False)
    assert recorder.seen[-1] == (IDLE, False)


def test_ended_input_is_not_waited_for() -> None:
    union, recorder = union_of(2)
    union.ports[0].advance_watermark(MAX_TIMESTAMP)
    union.ports[0].end_input()
    union.ports[1].advance_watermark(7)
    assert recorder.seen == [(W, 7)]
    union.ports[1].advance_watermark(MAX_TIMESTAMP)
    union.ports[1].end_input()
    assert recorder.seen[1:] == [(W, MAX_TIMESTAMP), (END,)]


def test_end_comes_when_all_have_ended_and_once() -> None:
    union, recorder = union_of(3)
    for port in union.ports:
        assert (END,) not in recorder.seen
        port.end_input()
    assert recorder.seen.count((END,)) == 1


def test_ended_input_beside_an_idle_one_does_not_let_event_time_jump_to_its_end() -> None:
    # the idle one may come back: what it then brings must not be late
    union, recorder = union_of(2)
    union.ports[1].advance_watermark(5)
    union.ports[1].set_idle(True)
    union.ports[0].advance_watermark(MAX_TIMESTAMP)
    union.ports[0].end_input()
    assert (W, MAX_TIMESTAMP) not in recorder.seen


def test_restored_union_waits_as_before() -> None:
    union, _ = union_of(2)
    union.ports[0].advance_watermark(10)
    union.ports[1].set_idle(True)
    copy, recorder = union_of(2)
    copy.restore(union.snapshot())
    copy.ports[1].set_idle(False)
    copy.ports[0].advance_watermark(20)
    assert recorder.seen == [(W, 10)]
    copy.ports[1].advance_watermark(12)
    assert recorder.seen == [(W, 10), (W, 12)]


Step = tuple[str, int, Any]

STEPS = st.one_of(
    st.tuples(st.just("watermark"), st.integers(0, 2), st.integers(-5, 30)),
    st.tuples(st.just("idle"), st.integers(0, 2), st.booleans()),
)


@given(st.lists(STEPS, max_size=40))
def test_watermark_never_goes_back_and_never_passes_an_active_input(steps: list[Step]) -> None:
    union, recorder = union_of(3)
    latest = [MIN_TIMESTAMP] * 3
    idle = [False] * 3
    out = MIN_TIMESTAMP
    for kind, number, what in steps:
        before = len(recorder.seen)
        if kind == "watermark":
            latest[number] = max(latest[number], what)
            union.ports[number].advance_watermark(what)
        else:
            idle[number] = what
            union.ports[number].set_idle(what)
        for name, *value in recorder.seen[before:]:
            if name == W:
                assert value[0] > out
                out = value[0]
        active = [mark for mark, is_idle in zip(latest, idle, strict=True) if not is_idle]
        expected = min(active) if active else max(latest)
        assert out >= expected or expected == MIN_TIMESTAMP
        flags = [entry[1] for entry in recorder.seen if entry[0] == IDLE]
        assert (flags[-1] if flags else False) is (not active)
        assert all(one is not two for one, two in pairwise(flags))
