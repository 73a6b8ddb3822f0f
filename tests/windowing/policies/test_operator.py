from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.errors import UserFunctionError
from asyncstream.windowing.policies import PolicyWindow, PolicyWindowOperator, WindowManager, policy_window
from tests.windowing.policies.subject import Subject


def ms(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def test_the_worked_example_of_storms_guide() -> None:
    subject = Subject(policy_window(timedelta(seconds=20), timedelta(seconds=10), lag=5))
    six = 6 * 3600_000
    subject.push(six + 3_000, six + 5_000, six + 7_000, six + 18_000, six + 26_000, six + 36_000)
    subject.pass_time()
    ends = [(len(values), end - six) for values, end in subject.windows()]
    assert ends == [(3, 10_000), (4, 20_000), (2, 30_000)]
    # an element at the watermark may still come, so downstream hears of the millisecond before
    assert subject.log[-1] == ("watermark", six + 30_999, six + 30_999)


def test_window_tells_new_and_expired_elements_and_its_span() -> None:
    subject = Subject(policy_window(ms(20), ms(10)))
    subject.push(5, 15, 25, 31)
    subject.pass_time()
    assert subject.named("window") == [
        PolicyWindow([5], [5], [], -10, 10),
        PolicyWindow([5, 15], [15], [], 0, 20),
        PolicyWindow([15, 25], [25], [5], 10, 30),
    ]
    assert [entry[2] for entry in subject.log if entry[0] == "window"] == [10, 20, 30]


def test_window_can_be_made_with_the_type_of_its_elements() -> None:
    made = PolicyWindow[int](values=[1], new=[1], expired=[], start_ms=None, end_ms=5)
    assert made == PolicyWindow([1], [1], [], None, 5)


def test_slide_not_given_ends_a_window_with_every_element() -> None:
    subject = Subject(policy_window(2, time="processing"))
    subject.push(1, 2, 3)
    assert subject.windows() == [([1], 0), ([1, 2], 0), ([2, 3], 0)]
    assert subject.named("window")[0].start_ms is None


def test_tumbling_puts_each_element_into_one_window() -> None:
    subject = Subject(policy_window(ms(10), tumbling=True))
    subject.push(10, 11, 20, 21)
    subject.end()
    assert subject.windows() == [([10], 10), ([11, 20], 20), ([21], 30)]


@pytest.mark.parametrize("length", [ms(10), ms(25), 2])
def test_windows_that_end_after_the_end_of_time_fire_with_the_input(length: timedelta | int) -> None:
    """What came from windows of counts, for instance, is of the last millisecond that there is."""
    subject = Subject(policy_window(length, ms(10)))
    subject.push(MAX_TIMESTAMP - 20, MAX_TIMESTAMP, MAX_TIMESTAMP)
    subject.pass_time()
    subject.end()
    last = [window for window in subject.named("window") if MAX_TIMESTAMP in window.values]
    assert last[0].new == [MAX_TIMESTAMP, MAX_TIMESTAMP]
    assert last[0].end_ms == -(-MAX_TIMESTAMP // 10) * 10 > MAX_TIMESTAMP
    assert subject.named("skipped") == []
    assert max(stamp for name, _, stamp in subject.log if name == "window") == MAX_TIMESTAMP


def test_element_of_a_slow_stream_behind_a_fast_one_is_in_its_window() -> None:
    """Storm stops its scan at the fast stream's element and loses the slow stream's."""
    operator = policy_window(
        ms(20), ms(10), lag=0.005, streams=["fast", "slow"], stream_of=lambda v: "fast" if v > 500 else "slow"
    )
    subject = Subject(operator)
    subject.push(900, 103, 115, 127)
    subject.pass_time()
    assert subject.windows() == [([103], 110), ([103, 115], 120)]


def test_late_elements_go_to_the_late_output_and_equal_ones_do_not() -> None:
    subject = Subject(policy_window(ms(20), ms(10)))
    subject.push(115)
    subject.pass_time()
    subject.push(114, 115, 117)
    assert subject.named("late") == [114]
    assert subject.operator.metrics()["late"] == 1
    subject.end()
    assert subject.windows()[0] == ([115, 115, 117], 120)


def test_element_equal_to_a_fired_end_is_told_as_skipped_if_no_later_window_reaches_back() -> None:
    subject = Subject(policy_window(ms(10), tumbling=True))
    subject.push(705, 710)
    subject.pass_time()
    subject.push(710, 721)
    subject.end()
    assert subject.windows() == [([705, 710], 710), ([721], 730)]
    assert subject.named("skipped") == [710]
    assert subject.operator.metrics()["skipped"] == 1


def test_end_that_came_out_empty_fires_for_an_element_at_exactly_that_end() -> None:
    subject = Subject(policy_window(ms(5), ms(10), lag=0.002))
    subject.push(91, 102)  # 91 is in the hole before (95, 100], which comes out empty
    subject.pass_time()
    assert subject.windows() == []
    subject.push(100)
    assert subject.windows() == []  # with the next watermark, like any other
    subject.push(113)
    subject.pass_time()
    assert subject.windows() == [([100], 100)]


def test_what_falls_into_a_hole_between_windows_is_told() -> None:
    subject = Subject(policy_window(ms(5), ms(20)))
    subject.push(103, 118, 125)
    subject.end()
    assert subject.windows() == [([118], 120)]
    assert sorted(subject.named("skipped")) == [103, 125]
    assert sorted(subject.named("expired")) == [103, 118, 125]


def test_count_length_does_not_fire_the_same_elements_through_a_gap() -> None:
    subject = Subject(policy_window(3, ms(10)))
    subject.push(101, 3_600_000)
    subject.pass_time()
    assert subject.windows() == [([101], 110), ([101, 3_600_000], 3_600_000)]


def test_element_at_the_last_end_of_a_count_slide_is_not_counted_again_but_told() -> None:
    subject = Subject(policy_window(ms(2), 2))
    subject.push(4, 5)
    subject.pass_time()
    subject.push(5, 6, 7)
    subject.pass_time()
    assert subject.windows() == [([4, 5], 5), ([6, 7], 7)]
    assert subject.named("skipped") == [5]


def test_count_length_lets_go_of_what_arrived_first_and_tells_what_no_window_has_shown() -> None:
    subject = Subject(policy_window(2, ms(10)))
    subject.push(9, 3, 4, 12)
    subject.pass_time()
    assert subject.windows() == [([3, 4], 10)]
    assert subject.named("skipped") == [9]


def test_window_tells_what_has_expired_in_an_empty_one_before_it() -> None:
    subject = Subject(policy_window(ms(10), tumbling=True))
    subject.push(105, 135)
    subject.pass_time()
    subject.end()
    told = [(window.values, window.expired, window.end_ms) for window in subject.named("window")]
    assert told == [([105], [], 110), ([135], [105], 140)]


def test_times_before_1970_are_times_like_others() -> None:
    subject = Subject(policy_window(ms(10), tumbling=True))
    subject.push(-35, -31, -20)
    subject.pass_time()
    assert subject.windows() == [([-35, -31], -30), ([-20], -20)]
    subject.push(-21)
    assert subject.named("late") == [-21]


def test_count_slide_of_a_finite_stream_ends_with_a_shorter_window() -> None:
    for time in ("event", "processing"):
        subject = Subject(policy_window(3, tumbling=True, time=time))
        subject.push(1, 2, 3, 4, 5)
        subject.pass_time()
        subject.end()
        assert [values for values, _ in subject.windows()] == [[1, 2, 3], [4, 5]]


def test_rest_is_not_late_downstream() -> None:
    subject = Subject(policy_window(3, tumbling=True, key_by=lambda value: value < 100))
    subject.push(5, 200, 201, 202, 300)
    subject.pass_time()
    assert subject.log[-1] == ("watermark", 299, 299)
    subject.end()
    rests = [(window.values, timestamp) for name, window, timestamp in subject.log if name == "window"][1:]
    assert rests == [([5], 300), ([300], 300)]


def test_timed_windows_end_at_multiples_of_the_slide_however_late_the_timer() -> None:
    prompt, tardy = (Subject(policy_window(ms(20), ms(10), time="processing"), 1003) for _ in range(2))
    for subject in (prompt, tardy):
        subject.push(1)
        assert subject.asked_ms == [1011]
    prompt.at(1010)
    assert prompt.windows() == []  # an element may still arrive in this millisecond
    for now in (1011, 1021, 1031):
        prompt.at(now)
    tardy.at(1038)
    assert prompt.windows() == tardy.windows() == [([1], 1010), ([1], 1020)]


def test_window_that_ended_before_an_element_does_not_hold_it_though_no_timer_went_off() -> None:
    subject = Subject(policy_window(5, ms(10), time="processing"), 1003)
    subject.push(1)
    subject.clock.set_ms(1017)
    subject.push(2)
    assert subject.windows() == [([1], 1010)]


def test_first_timed_window_is_as_long_as_any_other_after_a_restart_too() -> None:
    def build() -> Any:
        return policy_window(ms(20), ms(10), time="processing")

    subject = Subject(build(), 1003)
    subject.push(1)
    subject.at(1011)
    subject.restart(build())
    subject.at(5000)
    assert subject.windows() == [([1], 1010), ([1], 1020)]
    subject.push(2)
    subject.at(5011)
    assert subject.windows()[2:] == [([2], 5000), ([2], 5010)]


def test_restarted_operator_knows_what_is_late_and_what_is_new() -> None:
    def build() -> Any:
        return policy_window(ms(20), ms(10))

    subject = Subject(build())
    subject.push(105, 111)
    subject.pass_time()
    subject.restart(build())
    subject.push(110, 112, 120)
    subject.pass_time()
    assert subject.named("late") == [110]
    assert subject.named("window")[1:] == [PolicyWindow([105, 111, 112, 120], [111, 112, 120], [], 100, 120)]


def test_upstream_watermarks_do_not_fire_but_the_last_one_does() -> None:
    subject = Subject(policy_window(ms(10), tumbling=True))
    subject.push(5)
    subject.operator.advance_watermark(50)
    assert subject.log == []
    subject.operator.advance_watermark(MAX_TIMESTAMP)
    assert subject.windows() == [([5], 10)]
    assert subject.log[-1][:2] == ("watermark", MAX_TIMESTAMP)


def test_watermarks_pass_through_in_processing_time() -> None:
    subject = Subject(policy_window(3, time="processing"))
    subject.operator.advance_watermark(50)
    assert subject.log == [("watermark", 50, 50)]


def test_silent_stream_is_waited_for_until_it_is_idle() -> None:
    operator = policy_window(
        ms(10), tumbling=True, streams=["a", "b"], stream_of=lambda value: "a", idle_after=30
    )
    subject = Subject(operator)
    subject.push(5, 25)
    for _ in range(30):
        subject.pass_time()
        assert subject.windows() == []
    subject.pass_time()
    assert subject.windows() == [([5], 10)]


@pytest.mark.parametrize("before", [None, 30, 300])
def test_silent_stream_is_not_waited_for_longer_than_the_settings_of_now_say(before: int | None) -> None:
    def operator(idle_after: int | None) -> PolicyWindowOperator:
        return policy_window(
            ms(10), tumbling=True, streams=["a", "b"], stream_of=lambda value: "a", idle_after=idle_after
        )

    subject = Subject(operator(before))
    subject.push(5, 25)
    subject.pass_time()
    subject.restart(operator(30))
    for _ in range(31):
        subject.pass_time()
    assert subject.windows() == [([5], 10)]


def test_stream_can_be_told_idle() -> None:
    operator = policy_window(ms(10), tumbling=True, streams=["a", "b"], stream_of=lambda value: "a")
    subject = Subject(operator)
    subject.push(5, 25)
    subject.pass_time()
    operator.mark_idle("b")
    subject.pass_time()
    assert subject.windows() == [([5], 10)]


def test_keys_have_windows_of_their_own_and_share_the_watermark() -> None:
    subject = Subject(policy_window(2, tumbling=True, key_by=lambda value: value % 2))
    subject.push(1, 2, 3, 4, 5, 6)
    subject.pass_time()
    assert subject.windows() == [([1, 3], 3), ([2, 4], 4)]


def test_keys_without_elements_are_forgotten_under_a_time_slide() -> None:
    operator = policy_window(ms(10), tumbling=True, key_by=lambda value: value)
    subject = Subject(operator)
    subject.push(*range(100), 1000)
    subject.pass_time()
    assert len(operator.tables["managers"]) == 1
    assert operator.metrics() == {"late": 0, "skipped": 0, "windows": 101, "held": 1}


def test_function_makes_the_result() -> None:
    subject = Subject(policy_window(2, 2, lambda window: sum(window.values), time="processing"))
    subject.push(1, 2, 3, 4)
    assert subject.named("window") == [3, 7]


def test_failing_function_is_blamed_with_its_window() -> None:
    subject = Subject(policy_window(1, function=lambda window: 1 / 0, time="processing"))
    with pytest.raises(UserFunctionError, match=r"windows.*ZeroDivisionError"):
        subject.push(1)


@pytest.mark.parametrize("function", ["key_by", "stream_of"])
def test_failing_function_of_elements_is_blamed_with_its_element(function: str) -> None:
    arguments: dict[str, Any] = {function: lambda value: 1 / (value - 17)}
    streams = ["1.0"] if function == "stream_of" else None
    subject = Subject(policy_window(1, streams=streams, **arguments))
    with pytest.raises(UserFunctionError) as caught:
        subject.push(16, 17)
    assert caught.value.element == 17


def test_what_is_downstream_is_told_after_a_restart_how_far_event_time_had_come() -> None:
    subject = Subject(policy_window(ms(20)))
    subject.push(40)
    subject.pass_time()
    subject.restart(policy_window(ms(20)))
    subject.operator.resume()
    assert subject.named("watermark") == subject.named("restored") == [39]


def test_element_without_timestamp_is_refused_in_event_time() -> None:
    operator = policy_window(2)
    with pytest.raises(UserFunctionError, match='time="processing"'):
        operator.process("x", None)


@pytest.mark.parametrize("timestamp", [None, "5", 5.5, True, 2**63, -(2**63) - 1])
def test_an_element_that_cannot_be_placed_in_time_is_an_error_that_names_it(timestamp: Any) -> None:
    operator = policy_window(ms(2), streams=["a"], stream_of=lambda value: "a")
    with pytest.raises(UserFunctionError, match=r"timestamp.*'y'"):
        operator.process_batch(["x", "y"], [1, timestamp])


def test_expired_elements_are_told_before_the_window_that_misses_them() -> None:
    subject = Subject(policy_window(2, 2, time="processing"))
    subject.push(1, 2, 3, 4)
    assert [entry[0] for entry in subject.log] == ["window", "expired", "expired", "window"]


def test_long_slide_does_not_hold_expired_elements() -> None:
    operator = policy_window(5, 1000, time="processing")
    subject = Subject(operator)
    subject.push(*range(250))
    assert operator.metrics()["held"] == 55
    assert subject.named("expired") == subject.named("skipped") == list(range(195))


def test_batches_do_not_change_the_windows() -> None:
    whole, single = (Subject(policy_window(7, 3, time="processing")) for _ in range(2))
    whole.push(*range(500))
    for element in range(500):
        single.push(element)
    assert whole.log == single.log


@pytest.mark.parametrize(("length", "slide"), [(timedelta(days=1), ms(10)), (ms(30), ms(10)), (3, ms(10))])
def test_at_the_end_of_input_the_clock_fires_one_more_window(length: Any, slide: Any) -> None:
    subject = Subject(policy_window(length, slide, time="processing"), 1003)
    subject.push(1, 2)
    subject.at(1011)
    subject.push(3)
    subject.end()
    assert subject.windows() == [([1, 2], 1010), ([1, 2, 3], 1020)]


def test_an_element_asks_no_other_key_when_its_window_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[WindowManager] = []
    due_ms = WindowManager.due_ms

    def noted(manager: WindowManager) -> int | None:
        asked.append(manager)
        return due_ms(manager)

    monkeypatch.setattr(WindowManager, "due_ms", noted)
    subject = Subject(policy_window(ms(20), ms(10), time="processing", key_by=lambda value: value), 1003)
    subject.operator.process_batch(range(50), None)
    asked.clear()
    subject.operator.process_batch([7, 7], None)
    assert len(asked) == 1
    assert subject.asked_ms == [1011]


@pytest.mark.parametrize(("length", "slide"), [(ms(10), ms(10)), (ms(10), 2), (2, ms(10)), (2, 2)])
def test_a_watermark_makes_no_key_young_of_which_no_window_ends(length: Any, slide: Any) -> None:
    """Copied behind each cut, all keys would stop the event loop, and each checkpoint would have them all."""
    operator = policy_window(length, slide, key_by=lambda value: value % 2)
    subject = Subject(operator)
    subject.push(2, 4, 21)
    operator.tables.cut()
    subject.pass_time()
    assert [window.values for window in subject.named("window")] == [[2, 4]]
    assert 1 not in operator.tables["managers"].young.get(None, {})
