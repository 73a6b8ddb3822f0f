"""Event time of a source's splits: the slowest counts, idle ones excepted, and those far ahead wait."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import AscendingTimestamps, ManualClock
from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.split_times import SplitTimes
from asyncstream.operators.timestamps import AssignEventTime
from tests.operators.recorder import IDLE, Recorder, W, record

EVERY_ONE = AscendingTimestamps(every=0)


def followed(
    *names: str, idle_after_ms: int | None = None, max_drift_ms: int | None = None
) -> tuple[AssignEventTime, Recorder, ManualClock, list[set[str]]]:
    """A step that follows these splits, what it emits, its clock, and which splits were to wait."""
    operator = AssignEventTime(lambda value: value, EVERY_ONE, idle_after_ms, max_drift_ms=max_drift_ms)
    recorder, clock, held = record(operator), ManualClock(0), []
    operator.open(OperatorContext(clock=clock, wake_at=lambda ms: None))
    operator.follow_splits(lambda ahead: held.append(set(ahead)))
    operator.assign_splits(names)
    return operator, recorder, clock, held


def push(operator: AssignEventTime, split: str, *values: int) -> None:
    operator.enter_split(split)
    operator.process_batch(list(values), None)


def watermarks(recorder: Recorder) -> list[Any]:
    return [seen[1] for seen in recorder.seen if seen[0] is W]


def test_the_watermark_is_the_smallest_of_the_splits() -> None:
    operator, recorder, _, _ = followed("a", "b")
    push(operator, "a", 100, 200)
    assert watermarks(recorder) == []
    push(operator, "b", 50)
    push(operator, "b", 150, 300)
    assert watermarks(recorder) == [49, 149, 199]


def test_an_element_out_of_order_takes_nothing_back() -> None:
    operator, recorder, _, _ = followed("a")
    push(operator, "a", 100, 50, 200)
    assert watermarks(recorder) == [99, 199]
    times = SplitTimes(EVERY_ONE, None, None)
    times.assign(["a"], 0)
    times.enter("a", 0)
    assert [times.advance(watermark) for watermark in (9, 5, 12)] == [9, 9, 12]


class Compared(int):
    """A watermark that counts in `total` with how many others such ones are compared."""

    total = 0

    def __lt__(self, other: int) -> bool:
        Compared.total += 1
        return super().__lt__(other)

    def __gt__(self, other: int) -> bool:
        Compared.total += 1
        return super().__gt__(other)


@pytest.mark.parametrize("max_drift_ms", [None, 10_000])
def test_a_watermark_costs_about_the_same_however_many_splits_there_are(max_drift_ms: int | None) -> None:
    def compared(splits: int) -> int:
        times = SplitTimes(EVERY_ONE, None, max_drift_ms)
        times.assign(map(str, range(splits)), 0)
        for step in range(5 * splits):
            Compared.total *= step > splits  # while some have brought nothing, all others wait for them
            times.enter(str(step % splits), 0)
            slowest = step - splits + 1 if step >= splits - 1 else MIN_TIMESTAMP
            assert times.advance(Compared(step)) == slowest
            times.align(0)
        return Compared.total

    assert compared(200) < 8 * compared(50)


def test_the_clock_is_asked_for_when_a_split_may_have_turned_idle() -> None:
    operator, recorder, clock, _ = followed(idle_after_ms=100)
    wakes: list[int] = []
    operator.context = OperatorContext(clock=clock, wake_at=wakes.append)
    operator.advance_clock(0)  # there are no splits: that is silence, too
    operator.assign_splits(["a", "b"])
    for now_ms, split in ((60, "a"), (70, "b")):
        clock.set_ms(now_ms)
        push(operator, split, 100)
    for now_ms in (100, 160, 170):
        clock.set_ms(now_ms)
        operator.advance_clock(now_ms)
    push(operator, "b", 200)
    operator.advance_clock(180)
    assert wakes == [100, 100, 160, 170, 270, 270]
    assert [seen for seen in recorder.seen if seen[0] is IDLE] == [(IDLE, True), (IDLE, False)]


def test_an_idle_split_is_not_waited_for_until_it_is_back() -> None:
    operator, recorder, clock, _ = followed("a", "b", idle_after_ms=1000)
    push(operator, "a", 100)
    clock.set_ms(500)
    push(operator, "a", 200)
    clock.set_ms(1000)
    operator.advance_clock(1000)
    assert watermarks(recorder) == [199]
    push(operator, "b", 150)  # behind: the watermark stands still until it has caught up
    push(operator, "a", 400)
    assert watermarks(recorder) == [199]
    push(operator, "b", 300)
    assert watermarks(recorder) == [199, 299]


def test_the_stream_is_idle_when_all_splits_are() -> None:
    operator, recorder, clock, _ = followed("a", "b", idle_after_ms=1000)
    push(operator, "a", 100)
    clock.set_ms(1000)
    operator.advance_clock(1000)
    assert recorder.seen[-1] == (IDLE, True)
    push(operator, "b", 50)
    assert (IDLE, False) in recorder.seen


def test_a_split_that_is_gone_is_not_waited_for() -> None:
    operator, recorder, _, _ = followed("a", "b")
    push(operator, "a", 100)
    operator.assign_splits(("a",))
    assert watermarks(recorder) == [99]


def test_a_split_that_has_come_is_waited_for() -> None:
    operator, recorder, _, _ = followed("a")
    push(operator, "a", 100)
    operator.assign_splits(("a", "b"))
    push(operator, "a", 200)
    assert watermarks(recorder) == [99]
    push(operator, "b", 120)
    assert watermarks(recorder) == [99, 119]


def test_a_split_far_ahead_waits_for_the_slowest_and_is_not_idle_meanwhile() -> None:
    operator, recorder, clock, held = followed("a", "b", idle_after_ms=1000, max_drift_ms=100)
    push(operator, "b", 10)
    push(operator, "a", 50)
    assert held == [{"b"}, set()]  # before "a" had brought anything, any split was ahead of it
    push(operator, "a", 500)
    assert held[-1] == {"a"}
    clock.set_ms(900)
    push(operator, "b", 20)
    clock.set_ms(1500)
    operator.advance_clock(1500)  # "a" has been silent for longer than a second, because it was told to
    push(operator, "b", 450)
    assert held[-1] == set()
    assert watermarks(recorder) == [9, 19, 449]


def test_time_in_which_a_split_waited_for_others_is_no_part_of_its_silence() -> None:
    """Though it waits no more when its silence is looked at."""
    operator, recorder, clock, held = followed("a", "b", idle_after_ms=1000, max_drift_ms=100)
    push(operator, "b", 10)
    push(operator, "a", 500)
    clock.set_ms(800)
    push(operator, "b", 450)
    assert held[-2:] == [{"a"}, set()]
    clock.set_ms(1200)
    operator.advance_clock(1200)
    push(operator, "b", 1000)
    assert watermarks(recorder) == [9, 449, 499]  # of "a" no more, for it has said nothing for 400 ms only
    clock.set_ms(1800)
    operator.advance_clock(1800)
    assert watermarks(recorder) == [9, 449, 499, 999]


def test_where_the_slowest_is_idle_the_others_go_on() -> None:
    operator, recorder, clock, held = followed("a", "b", idle_after_ms=1000, max_drift_ms=100)
    push(operator, "a", 500)
    assert held == [{"a"}]
    clock.set_ms(1000)
    operator.advance_clock(1000)
    assert held[-1] == set()
    assert watermarks(recorder) == [499]


def test_where_all_are_idle_none_waits() -> None:
    times = SplitTimes(EVERY_ONE, 1000, 100)
    times.assign("ab", 0)
    times.enter("a", 0)
    times.advance(500)
    assert times.align(0)
    times.look(1000, excused=False)
    times.align(1000)
    assert times.ahead == set()
    times.look(2000, excused=False)
    assert times.is_idle
    assert not times.align(2000)


def test_where_there_have_been_no_splits_for_as_long_the_stream_is_idle() -> None:
    operator, recorder, clock, _ = followed(idle_after_ms=1000)

    def pass_to(now_ms: int) -> list[Any]:
        clock.set_ms(now_ms)
        operator.advance_clock(now_ms)
        return [seen[1] for seen in recorder.seen if seen[0] is IDLE]

    assert pass_to(999) == []
    assert pass_to(1000) == [True]
    operator.assign_splits(("a",))
    push(operator, "a", 100)
    clock.set_ms(1500)
    operator.assign_splits(())
    assert pass_to(2499) == [True, False]
    assert pass_to(2500) == [True, False, True]
    restored = AssignEventTime(lambda value: value, EVERY_ONE, 1000)
    seen = record(restored)
    restored.restore(operator.snapshot())
    restored.follow_splits(lambda ahead: None)
    restored.advance_clock(2500)
    restored.assign_splits(("b",))
    assert [one for one in seen.seen if one[0] is IDLE] == [(IDLE, False)]


def test_silence_says_nothing_while_the_source_may_not_be_read() -> None:
    times = SplitTimes(EVERY_ONE, 1000, None)
    times.assign("a", 0)
    assert times.look(1000, excused=True) == 2000
    assert not times.is_idle


def test_the_next_look_is_at_who_may_turn_idle_first() -> None:
    times = SplitTimes(EVERY_ONE, 1000, None)
    times.assign("abc", 0)
    for name, now_ms in (("a", 200), ("b", 100), ("c", 300)):
        times.enter(name, now_ms)
    assert times.look(500, excused=False) == 1100


def test_each_split_has_its_watermarks_thinned_out_as_if_nothing_had_happened() -> None:
    def begun(kept: Any = None) -> SplitTimes:
        times = SplitTimes(AscendingTimestamps(every=0.1), None, None)
        times.restore(kept or {})
        times.assign("a", 0)
        return times

    times = begun()
    assert times.enter("a", 0).on_element(None, 1000) == 999
    times.advance(999)
    for one in (times, begun(times.snapshot())):
        generator = one.enter("a", 0)
        assert [generator.on_element(None, timestamp) for timestamp in (1050, 1100)] == [None, 1099]


def test_a_snapshot_holds_how_far_each_split_has_come() -> None:
    operator, _, _, _ = followed("a", "b")
    push(operator, "a", 100)
    push(operator, "b", 50)
    restored = AssignEventTime(lambda value: value, EVERY_ONE)
    recorder = record(restored)
    restored.restore(operator.snapshot())
    assert restored.snapshot() == operator.snapshot()  # also before it knows of any split
    restored.follow_splits(lambda ahead: None)
    restored.assign_splits(("a", "b"))
    push(restored, "b", 80)
    push(restored, "b", 200)
    assert watermarks(recorder) == [79, 99]


def test_a_split_that_was_idle_is_waited_for_where_none_is_idle_any_more() -> None:
    operator, _, clock, _ = followed("a", "b", idle_after_ms=1000)
    push(operator, "a", 10)
    clock.set_ms(1000)
    operator.advance_clock(1000)
    copy = AssignEventTime(lambda value: value, EVERY_ONE)
    recorder = record(copy)
    copy.restore(operator.snapshot())
    copy.follow_splits(lambda ahead: None)
    copy.assign_splits(["a", "b"])
    assert recorder.seen == [(IDLE, False)]
    push(copy, "a", 20)
    assert watermarks(recorder) == []
    push(copy, "b", 15)
    assert watermarks(recorder) == [14]


def test_a_source_without_splits_has_the_snapshot_that_it_had() -> None:
    operator = AssignEventTime(lambda value: value, EVERY_ONE)
    record(operator)
    operator.process(10, None)
    assert operator.snapshot() == [11, 9, False]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50))))
def test_no_element_is_late_that_is_not_late_in_its_own_split(elements: list[tuple[str, int]]) -> None:
    times = SplitTimes(EVERY_ONE, None, None)
    times.assign(list("abc"), 0)
    own = dict.fromkeys("abc", MIN_TIMESTAMP)
    for split, timestamp in elements:
        watermark = times.enter(split, 0).on_element(None, timestamp)
        if watermark is not None:
            own[split] = max(own[split], watermark)
            times.advance(watermark)
        assert times.watermark() == min(own.values())


STEPS = st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.sampled_from(("enter", "look", "assign")))


@given(st.lists(STEPS, max_size=30))
def test_the_slowest_and_those_ahead_are_found_as_if_all_were_looked_at(
    steps: list[tuple[str, int, str]],
) -> None:
    times = SplitTimes(EVERY_ONE, 3, 2)
    times.assign("ab", 0)
    watermarks, idle = dict.fromkeys("ab", MIN_TIMESTAMP), set[str]()
    for now_ms, (split, watermark, what) in enumerate(steps):
        if what == "assign":
            watermarks = {name: watermarks.get(name, MIN_TIMESTAMP) for name in {"a", split}}
            idle &= watermarks.keys()
            times.assign(watermarks, now_ms)
        elif what == "look":
            times.look(now_ms, excused=False)
            idle = {name for name, (_, _, is_idle) in times.snapshot().items() if is_idle} & watermarks.keys()
        elif split in watermarks:
            idle.discard(split)
            times.enter(split, now_ms)
            times.advance(watermark)
            watermarks[split] = max(watermark, watermarks[split])
        active = {name: reached for name, reached in watermarks.items() if name not in idle}
        slowest = min(active.values(), default=MIN_TIMESTAMP)
        times.align(now_ms)
        assert (times.watermark(), times.is_idle) == (slowest, not active)
        assert times.ahead == {name for name, reached in active.items() if reached > slowest + 2}
