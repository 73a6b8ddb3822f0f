from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.operators.ports import Port
from asyncstream.operators.union import Union, UnionSpec
from tests.operators.recorder import END, IDLE, RESTORED, Recorder, W, record


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


def test_input_that_comes_back_is_waited_for_once_it_has_caught_up() -> None:
    union, recorder = union_of(2)
    union.ports[1].set_idle(True)
    union.ports[0].advance_watermark(10)
    union.ports[1].set_idle(False)
    union.ports[1].advance_watermark(5)
    union.ports[0].advance_watermark(20)
    union.ports[1].advance_watermark(15)
    assert recorder.seen == [(W, 10), (W, 20)]
    union.ports[1].advance_watermark(20)
    union.ports[0].advance_watermark(30)
    assert recorder.seen == [(W, 10), (W, 20)]
    union.ports[1].advance_watermark(25)
    assert recorder.seen == [(W, 10), (W, 20), (W, 25)]


def test_end_beside_an_input_that_has_not_caught_up_does_not_let_event_time_jump_to_its_end() -> None:
    union, recorder = union_of(2)
    union.ports[1].set_idle(True)
    union.ports[0].advance_watermark(10)
    union.ports[1].set_idle(False)
    union.ports[1].advance_watermark(5)
    union.ports[0].advance_watermark(MAX_TIMESTAMP)
    union.ports[0].end_input()
    assert recorder.seen == [(W, 10)]
    union.ports[1].advance_watermark(12)
    assert recorder.seen == [(W, 10), (W, 12)]


def test_last_active_input_that_ends_beside_an_idle_one_leaves_the_largest_watermark() -> None:
    union, recorder = union_of(2)
    union.ports[1].advance_watermark(10)
    union.ports[1].set_idle(True)
    union.ports[0].advance_watermark(5)
    union.ports[0].advance_watermark(MAX_TIMESTAMP)
    union.ports[0].end_input()
    assert recorder.seen == [(W, 5), (W, 10), (IDLE, True)]
    union.ports[1].set_idle(False)
    union.ports[1].advance_watermark(11)
    assert recorder.seen[3:] == [(IDLE, False), (W, 11)]


def test_idle_inputs_that_follow_the_clock_are_followed_while_all_are_idle() -> None:
    union, recorder = union_of(2)
    union.ports[0].advance_watermark(5)
    union.ports[0].set_idle(True)
    union.ports[0].advance_watermark(6)
    assert recorder.seen == []  # the other one is waited for
    union.ports[1].set_idle(True)
    union.ports[0].advance_watermark(8)
    assert recorder.seen == [(W, 6), (IDLE, True), (W, 8)]


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


def test_input_that_ends_before_its_event_time_is_not_waited_for() -> None:
    union, recorder = union_of(2)
    union.ports[0].advance_watermark(5)
    union.ports[1].advance_watermark(7)
    union.ports[0].end_input()
    union.ports[1].advance_watermark(9)
    assert recorder.seen == [(W, 5), (W, 7), (W, 9)]


def test_inputs_of_one_name_are_told_apart() -> None:
    assert UnionSpec(("a", "b", "a", "a")).names == ["a", "b", "a (2)", "a (3)"]


def test_end_comes_when_all_have_ended_and_once() -> None:
    union, recorder = union_of(3)
    for port in union.ports:
        assert (END,) not in recorder.seen
        port.end_input()
    union.ports[1].end_input()
    assert recorder.seen.count((END,)) == 1


def test_input_that_has_ended_says_nothing_more_of_event_time() -> None:
    union, recorder = union_of(2)
    for port in union.ports:
        port.advance_watermark(MAX_TIMESTAMP)
    union.ports[0].advance_watermark(MAX_TIMESTAMP)
    union.ports[0].set_idle(True)
    union.ports[0].set_idle(False)
    assert recorder.seen == [(W, MAX_TIMESTAMP)]


def test_ended_input_beside_an_idle_one_does_not_let_event_time_jump_to_its_end() -> None:
    # the idle one may come back: what it then brings must not be late
    union, recorder = union_of(2)
    union.ports[1].advance_watermark(5)
    union.ports[1].set_idle(True)
    union.ports[0].advance_watermark(MAX_TIMESTAMP)
    union.ports[0].end_input()
    assert (W, MAX_TIMESTAMP) not in recorder.seen


def test_last_active_input_that_turns_idle_before_it_has_caught_up_leaves_event_time_where_it_is() -> None:
    union, recorder = union_of(3)
    union.ports[2].set_idle(True)
    union.ports[0].advance_watermark(10)
    union.ports[1].advance_watermark(5)
    union.ports[0].set_idle(True)
    union.ports[2].set_idle(False)
    union.ports[2].advance_watermark(3)
    union.ports[1].set_idle(True)
    union.ports[2].set_idle(True)
    assert recorder.seen == [(W, 5), (IDLE, True)]


def test_restored_union_waits_as_before() -> None:
    union, _ = union_of(2)
    union.ports[1].advance_watermark(10)
    union.ports[0].advance_watermark(10)
    copy, recorder = union_of(2)
    copy.restore(union.snapshot())
    copy.resume()
    copy.ports[0].advance_watermark(20)
    assert recorder.seen == [(RESTORED, 10)]
    copy.ports[1].advance_watermark(12)
    assert recorder.seen == [(RESTORED, 10), (W, 12)]


def test_union_that_is_new_in_a_restored_pipeline_learns_its_watermark_from_its_inputs() -> None:
    union, recorder = union_of(2)
    union.ports[0].restore_watermark(10)
    union.ports[1].restore_watermark(7)
    union.ports[1].advance_watermark(8)
    assert recorder.seen == [(RESTORED, 7), (W, 8)]


@pytest.mark.parametrize(
    "end",
    [lambda port: port.advance_watermark(MAX_TIMESTAMP), Port.end_input],
    ids=["of event time", "of input"],
)
def test_input_that_was_at_its_end_is_not_waited_for_after_a_restore(end: Callable[[Port], None]) -> None:
    union, _ = union_of(2)
    union.ports[0].advance_watermark(10)
    end(union.ports[0])
    union.ports[1].advance_watermark(5)
    copy, recorder = union_of(2)
    copy.restore(union.snapshot())
    copy.resume()
    copy.ports[1].advance_watermark(20)
    assert recorder.seen == [(RESTORED, 5), (W, 20)]


def test_event_time_ends_after_a_restore_when_it_has_ended_in_every_input_again() -> None:
    union, _ = union_of(2)
    for port in union.ports:
        port.advance_watermark(MAX_TIMESTAMP)
    again, recorder = union_of(2)
    again.restore(union.snapshot())
    again.ports[0].advance_watermark(MAX_TIMESTAMP)
    assert recorder.seen == []
    again.ports[1].advance_watermark(MAX_TIMESTAMP)
    assert recorder.seen == [(W, MAX_TIMESTAMP)]


def test_restored_union_that_was_idle_tells_that_it_is_not() -> None:
    union, _ = union_of(2)
    for port in union.ports:
        port.set_idle(True)
    again, recorder = union_of(2)
    again.restore(union.snapshot())
    assert again.time_reached() == (MIN_TIMESTAMP, True)
    again.ports[0].set_idle(False)
    assert recorder.seen == [(IDLE, False)]
    assert again.time_reached() == (MIN_TIMESTAMP, False)


def test_input_that_had_not_caught_up_and_turns_idle_beside_one_that_is_back_leaves_event_time() -> None:
    union, recorder = union_of(2)
    slow, other = union.ports
    slow.set_idle(True)
    other.advance_watermark(20)
    slow.set_idle(False)
    other.set_idle(True)
    other.advance_watermark(50)
    other.set_idle(False)
    slow.set_idle(True)
    assert recorder.seen == [(W, 20)]
    other.advance_watermark(60)
    assert recorder.seen == [(W, 20), (W, 60)]


def test_input_that_was_at_its_end_and_goes_on_after_a_restore_is_followed_again() -> None:
    union, _ = union_of(2)
    union.ports[0].advance_watermark(10)
    union.ports[0].advance_watermark(MAX_TIMESTAMP)
    union.ports[1].advance_watermark(5)
    copy, recorder = union_of(2)
    copy.restore(union.snapshot())
    copy.resume()
    copy.ports[1].advance_watermark(8)
    copy.ports[0].advance_watermark(12)
    copy.ports[1].advance_watermark(20)
    for port in copy.ports:
        port.advance_watermark(MAX_TIMESTAMP)
    assert recorder.seen == [(RESTORED, 5), (W, 8), (W, 12), (W, 20), (W, MAX_TIMESTAMP)]


Step = tuple[str, int, Any]

STEPS = st.one_of(
    st.tuples(st.just("watermark"), st.integers(0, 2), st.integers(-5, 30)),
    st.tuples(st.just("idle"), st.integers(0, 2), st.booleans()),
)


def do(union: Union, step: Step) -> None:
    kind, number, what = step
    port = union.ports[number]
    if kind == "watermark":
        port.advance_watermark(what)
    elif kind == "idle":
        port.set_idle(what)
    else:
        port.advance_watermark(MAX_TIMESTAMP)
        port.end_input()


@given(st.lists(STEPS | st.tuples(st.just("end"), st.integers(0, 2), st.none()), max_size=25), st.data())
def test_restored_union_goes_on_as_the_one_before(steps: list[Step], data: st.DataObject) -> None:
    ends: set[int] = set()
    drawn, steps = steps, []
    for step in drawn:
        if step[1] not in ends:  # nothing follows the end of an input
            steps.append(step)
            ends |= {step[1]} if step[0] == "end" else set()
    cut = data.draw(st.integers(0, len(steps)))
    union, recorder = union_of(3)
    for step in steps[:cut]:
        do(union, step)
    copy, after = union_of(3)
    copy.restore(union.snapshot())
    copy.resume()
    for step in steps[:cut]:
        if step[0] == "end":  # as sources do, which say it again
            do(copy, step)
    assert all(entry[0] is not W or entry[1] == MAX_TIMESTAMP for entry in after.seen)
    before, again = len(recorder.seen), len(after.seen)
    for step in steps[cut:]:
        do(union, step)
        do(copy, step)
    assert after.seen[again:] == recorder.seen[before:]


@given(st.lists(STEPS, max_size=40))
def test_watermark_never_goes_back_nor_stays_behind_the_slowest_active_input(steps: list[Step]) -> None:
    union, recorder = union_of(3)
    latest = [MIN_TIMESTAMP] * 3
    idle = [False] * 3
    out = MIN_TIMESTAMP
    for kind, number, what in steps:
        before = len(recorder.seen)
        held_back = not idle[number] and latest[number] == out
        if kind == "watermark":
            moved = what > latest[number]
            latest[number] = max(latest[number], what)
            union.ports[number].advance_watermark(what)
        else:
            moved = False
            idle[number] = what
            union.ports[number].set_idle(what)
        for name, *value in recorder.seen[before:]:
            if name == W:
                assert value[0] > out
                out = value[0]
        # an input that returns moves nothing, nor does one that turns idle and is behind: as in Flink
        active = [mark for mark, is_idle in zip(latest, idle, strict=True) if not is_idle]
        if active and ((moved and not idle[number]) or (held_back and idle[number])):
            assert out >= min(active)
        elif not active and moved:
            assert out >= what
        elif not active and held_back:
            assert out == max(latest)
        flags = [entry[1] for entry in recorder.seen if entry[0] == IDLE]
        assert (flags[-1] if flags else False) is (not active)
        assert all(one is not two for one, two in pairwise(flags))


class Compared(str):
    """A name that counts in `total` how often such ones are compared."""

    total = 0

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.total += 1
        return super().__eq__(other)


def test_a_union_of_many_names_each_without_a_look_at_all_others() -> None:
    spec = UnionSpec(tuple(Compared(number % 500) for number in range(1_000)))
    assert spec.names[499:502] == ["499", "0 (2)", "1 (2)"]
    assert Compared.total < 10_000
