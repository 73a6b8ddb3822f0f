from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import (
    AscendingTimestamps,
    BoundedOutOfOrderness,
    ManualClock,
    NoWatermarks,
    PunctuatedWatermarks,
    WatermarkStrategy,
)
from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.errors import UserFunctionError
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.quiet import AdvanceWhenQuiet
from asyncstream.operators.timestamps import AssignEventTime
from tests.operators.recorder import END, IDLE, RESTORED, Recorder, W, record


def same(value: Any) -> Any:
    return value


EVERY_ONE = AscendingTimestamps(every=0)


def test_watermark_follows_the_element_that_moved_it() -> None:
    operator = AssignEventTime(same, BoundedOutOfOrderness(0.005, every=0))
    recorder = record(operator)
    operator.process_batch([10, 8, 12], None)
    assert recorder.seen == [(10, 10), (W, 4), (8, 8), (12, 12), (W, 6)]


def test_timestamps_of_the_source_are_replaced() -> None:
    operator = AssignEventTime(same, NoWatermarks())
    recorder = record(operator)
    operator.process_batch([10], [99])
    operator.process(11, 99)
    assert recorder.seen == [(10, 10), (11, 11)]


def test_watermarks_from_upstream_end_here_except_the_last() -> None:
    operator = AssignEventTime(same, EVERY_ONE)
    recorder = record(operator)
    operator.advance_watermark(1000)
    operator.process(10, None)
    operator.advance_watermark(MAX_TIMESTAMP)
    operator.end_input()
    assert recorder.seen == [(10, 10), (W, 9), (W, MAX_TIMESTAMP), (END,)]


def test_watermarks_are_thinned_out_by_event_time() -> None:
    operator = AssignEventTime(same, AscendingTimestamps(every=1))
    recorder = record(operator)
    operator.process_batch([0, 500, 999, 1000, 1999, 2500], None)
    assert [entry for entry in recorder.seen if entry[0] == W] == [(W, -1), (W, 999), (W, 2499)]


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2013, 7, 1, 16, tzinfo=UTC),
        datetime(2013, 7, 1, 12, tzinfo=ZoneInfo("America/New_York")),  # summer: not the offset of the epoch
    ],
)
def test_datetimes_are_points_in_time(moment: datetime) -> None:
    operator = AssignEventTime(lambda value: moment, NoWatermarks())
    recorder = record(operator)
    operator.process("x", None)
    assert recorder.seen == [("x", 1372694400000)]


@pytest.mark.parametrize("wrong", [1.5, "2013", None, True, datetime(2013, 1, 1)])
def test_wrong_timestamp_is_blamed_on_its_element(wrong: Any) -> None:
    operator = AssignEventTime(lambda value: wrong if value == 2 else value, EVERY_ONE)
    recorder = record(operator)
    with pytest.raises(UserFunctionError, match="on element 2") as caught:
        operator.process_batch([1, 2, 3], None)
    assert isinstance(caught.value.__cause__, TypeError)
    assert recorder.values() == [1]


@pytest.mark.parametrize(
    "stamp", [2**64 - 1, -(2**63) - 1, -(10**400)], ids=["behind", "before", "long before"]
)
@pytest.mark.parametrize("strategy", [EVERY_ONE, NoWatermarks()], ids=str)
def test_timestamp_outside_of_all_time_fails_and_moves_no_watermark(
    strategy: WatermarkStrategy, stamp: int
) -> None:
    """As of an element without a time that says so by the largest number of 64 bits."""
    operator = AssignEventTime(same, strategy, on_error="skip")
    recorder = record(operator)
    operator.process_batch([1, stamp, 3], None)
    assert recorder.values() == [1, 3]
    assert operator.metrics()["skipped"] == 1
    assert operator.time_reached().watermark <= 2


def test_watermark_behind_all_time_is_blamed_on_its_element() -> None:
    operator = AssignEventTime(same, PunctuatedWatermarks(lambda value, timestamp: 2**63))
    record(operator)
    with pytest.raises(UserFunctionError, match=r"a timestamp of 64 bits.* on element 1"):
        operator.process(1, None)


def test_wrong_watermark_is_blamed_on_its_element() -> None:
    wrong: Any = 1.5
    operator = AssignEventTime(same, PunctuatedWatermarks(lambda value, timestamp: wrong))
    record(operator)
    with pytest.raises(UserFunctionError, match="on element 1"):
        operator.process(1, None)


class Broken(Recorder):
    def process_batch(self, values: Any, timestamps: Any) -> None:
        super().process_batch(values, timestamps)
        raise UserFunctionError("downstream", values[0], ValueError())


def test_error_from_downstream_does_not_push_anything_twice() -> None:
    operator = AssignEventTime(same, EVERY_ONE)
    record(operator)
    operator.out = broken = Broken()
    with pytest.raises(UserFunctionError, match="downstream"):
        operator.process_batch([1, 2], None)
    assert broken.values() == [1]


# ---------------------------------------------------------------------- idleness


def idle_rig() -> tuple[AssignEventTime, Recorder, ManualClock, list[int]]:
    clock, wakes = ManualClock(0), list[int]()
    operator = AssignEventTime(same, NoWatermarks(), idle_after_ms=100)
    return operator, record(operator, clock, wakes), clock, wakes


def tick(operator: AssignEventTime, clock: ManualClock, now_ms: int) -> None:
    clock.set_ms(now_ms)
    operator.advance_clock(now_ms)


def test_quiet_stream_turns_idle_and_comes_back() -> None:
    operator, recorder, clock, wakes = idle_rig()
    assert wakes == [100]
    tick(operator, clock, 100)
    assert recorder.seen == [(IDLE, True)]
    clock.set_ms(150)
    operator.process(1, None)
    assert recorder.seen == [(IDLE, True), (IDLE, False), (1, 1)]
    assert wakes == [100, 250]


def test_stream_that_we_keep_quiet_is_not_idle() -> None:
    clock, wakes, held = ManualClock(0), list[int](), [True]
    operator = AssignEventTime(same, EVERY_ONE, idle_after_ms=100)
    operator.out = recorder = Recorder()
    operator.open(OperatorContext(clock=clock, wake_at=wakes.append, is_held=lambda: bool(held)))
    operator.advance_clock(100)
    held.clear()
    operator.advance_clock(199)
    assert recorder.seen == []
    operator.advance_clock(200)
    assert recorder.seen == [(IDLE, True)]
    assert wakes == [100, 200, 200]


def test_stream_that_is_heard_of_is_not_idle() -> None:
    operator, recorder, clock, wakes = idle_rig()
    clock.set_ms(60)
    operator.process(1, None)
    tick(operator, clock, 100)
    assert recorder.seen == [(1, 1)]
    assert wakes == [100, 160]
    tick(operator, clock, 159)
    assert (IDLE, True) not in recorder.seen
    tick(operator, clock, 160)
    assert recorder.seen[-1] == (IDLE, True)


def test_idleness_is_part_of_the_snapshot() -> None:
    operator, _, clock, _ = idle_rig()
    tick(operator, clock, 100)
    copy, recorder, _, _ = idle_rig()
    copy.restore(operator.snapshot())
    copy.process(1, None)
    assert recorder.seen == [(IDLE, False), (1, 1)]


def test_stream_that_was_idle_comes_back_though_none_is_idle_any_more() -> None:
    operator, _, clock, _ = idle_rig()
    tick(operator, clock, 100)
    copy, wakes = AssignEventTime(same, NoWatermarks()), list[int]()
    recorder = record(copy, clock, wakes)
    copy.restore(operator.snapshot())
    copy.process(1, None)
    assert recorder.seen == [(IDLE, False), (1, 1)]
    assert wakes == []


# ---------------------------------------------------------------------- properties

STRATEGIES = st.sampled_from(
    [
        EVERY_ONE,
        AscendingTimestamps(every=0.02),
        BoundedOutOfOrderness(0.01, every=0),
        BoundedOutOfOrderness(0.01, every=0.03),
        PunctuatedWatermarks(lambda value, timestamp: timestamp - 5 if timestamp % 3 == 0 else None),
        NoWatermarks(),
    ]
)


@given(st.lists(st.integers(-50, 200)), st.lists(st.integers(1, 7), min_size=1), STRATEGIES)
def test_watermarks_do_not_depend_on_batches(
    values: list[int], sizes: list[int], strategy: WatermarkStrategy
) -> None:
    one, many = AssignEventTime(same, strategy), AssignEventTime(same, strategy)
    first, second = record(one), record(many)
    for value in values:
        one.process(value, None)
    start = number = 0
    while start < len(values):
        size = sizes[number % len(sizes)]
        many.process_batch(values[start : start + size], None)
        start, number = start + size, number + 1
    assert first.seen == second.seen


@given(st.lists(st.integers(-50, 200)), st.integers(0, 200), STRATEGIES)
def test_snapshot_at_any_point_goes_on_as_if_nothing_had_happened(
    values: list[int], cut: int, strategy: WatermarkStrategy
) -> None:
    whole, before, after = (AssignEventTime(same, strategy) for _ in range(3))
    expected, first, second = record(whole), record(before), record(after)
    whole.process_batch(values, None)
    before.process_batch(values[:cut], None)
    after.restore(before.snapshot())
    after.process_batch(values[cut:], None)
    assert first.seen + second.seen == expected.seen


@given(st.lists(st.integers(-50, 200)), STRATEGIES)
def test_watermarks_only_go_up(values: list[int], strategy: WatermarkStrategy) -> None:
    operator = AssignEventTime(same, strategy)
    recorder = record(operator)
    operator.process_batch(values, None)
    marks = [entry[1] for entry in recorder.seen if entry[0] == W]
    assert marks == sorted(set(marks))


@given(st.lists(st.integers(0, 100), min_size=1), st.integers(0, 20))
def test_element_within_the_bound_is_never_late(values: list[int], delay_ms: int) -> None:
    """What the strategy promises: at most `delay` behind the largest timestamp is not late."""
    operator = AssignEventTime(same, BoundedOutOfOrderness(delay_ms / 1000, every=0))
    recorder = record(operator)
    operator.process_batch(values, None)
    watermark, largest = -(2**63), -(2**63)
    for entry in recorder.seen:
        if entry[0] == W:
            watermark = entry[1]
            continue
        timestamp = entry[1]
        if timestamp >= largest - delay_ms:
            assert timestamp > watermark
        largest = max(largest, timestamp)


# ---------------------------------------------------------------------- silence


def quiet_rig() -> tuple[AdvanceWhenQuiet, Recorder, ManualClock, list[int]]:
    clock, wakes = ManualClock(1000), list[int]()
    operator = AdvanceWhenQuiet(100)
    recorder = Recorder()
    operator.out = recorder
    operator.open(OperatorContext(clock=clock, wake_at=wakes.append))
    return operator, recorder, clock, wakes


def watermarks_at(
    operator: AdvanceWhenQuiet, recorder: Recorder, clock: ManualClock, *times: int
) -> list[int]:
    before = len(recorder.seen)
    for now_ms in times:
        clock.set_ms(now_ms)
        operator.advance_clock(now_ms)
    return watermarks(recorder.seen[before:])


def watermarks(seen: list[tuple[Any, ...]]) -> list[int]:
    return [entry[1] for entry in seen if entry[0] == W]


def test_event_time_goes_on_with_the_clock_while_nothing_comes() -> None:
    operator, recorder, clock, wakes = quiet_rig()
    operator.process_batch(["a"], [50])
    operator.advance_watermark(40)

    assert wakes == [1100]
    assert watermarks_at(operator, recorder, clock, 1099, 1100, 1200) == [140, 240]
    assert wakes[-1] == 1300


def test_element_stops_the_clock_and_upstream_is_followed_again_from_where_it_is_ahead() -> None:
    operator, recorder, clock, _ = quiet_rig()
    operator.process_batch(["a"], [50])
    operator.advance_watermark(40)
    assert watermarks_at(operator, recorder, clock, 1100) == [140]

    clock.set_ms(1150)
    operator.process_batch(["b"], [160])
    operator.advance_watermark(120)
    operator.advance_watermark(150)

    assert watermarks(recorder.seen)[-2:] == [140, 150]
    assert watermarks_at(operator, recorder, clock, 1200, 1250) == [250]


def test_event_time_stays_while_it_is_we_who_keep_the_stream_quiet() -> None:
    clock, wakes, held = ManualClock(1000), list[int](), [True]
    operator = AdvanceWhenQuiet(100)
    operator.out = recorder = Recorder()
    operator.open(OperatorContext(clock=clock, wake_at=wakes.append, is_held=lambda: held[0]))
    operator.advance_watermark(40)
    assert watermarks_at(operator, recorder, clock, 1100, 1200) == []
    held.clear()
    held.append(False)
    assert watermarks_at(operator, recorder, clock, 1299, 1300) == [140]
    assert wakes == [1100, 1200, 1300, 1300, 1400]


def test_silence_before_the_first_watermark_says_nothing() -> None:
    operator, recorder, clock, _ = quiet_rig()

    assert watermarks_at(operator, recorder, clock, 1100, 5000) == []


def test_end_of_time_passes_and_is_not_gone_beyond() -> None:
    operator, recorder, clock, _ = quiet_rig()
    operator.advance_watermark(40)
    operator.advance_watermark(MAX_TIMESTAMP)

    assert watermarks_at(operator, recorder, clock, 1100, 5000) == []
    assert watermarks(recorder.seen) == [40, MAX_TIMESTAMP]


def test_watermark_of_a_silence_is_part_of_the_snapshot() -> None:
    operator, recorder, clock, _ = quiet_rig()
    operator.advance_watermark(40)
    assert watermarks_at(operator, recorder, clock, 1100) == [140]

    copy, recorder, clock, _ = quiet_rig()
    copy.restore(operator.snapshot())
    copy.resume()
    copy.advance_watermark(100)

    assert recorder.seen == [(RESTORED, 140)]
    assert watermarks_at(copy, recorder, clock, 1100) == [240]


def test_a_step_that_was_added_goes_on_from_where_event_time_had_come() -> None:
    operator, recorder, clock, _ = quiet_rig()
    operator.restore_watermark(40)
    operator.restore_watermark(30)
    operator.advance_watermark(35)

    assert recorder.seen == [(RESTORED, 40)]
    assert watermarks_at(operator, recorder, clock, 1100) == [140]


def test_what_upstream_had_come_to_does_not_set_back_what_a_silence_has_come_to() -> None:
    operator, recorder, clock, _ = quiet_rig()
    operator.restore(140)
    operator.restore_watermark(40)

    assert recorder.seen == []
    assert watermarks_at(operator, recorder, clock, 1100) == [240]
