"""The rule of a shared rate: what is lent and used is never more than the rate, in no stretch of a period."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.errors import PipelineError
from asyncstream.guards.guard import EARLY
from asyncstream.guards.shared.rates import RateAnswer, RateRequest, exchange, lease_length
from asyncstream.guards.shared.records import Moment


class Holder:
    """One process: uses what it was lent, and dies or restarts its machine when it is told."""

    def __init__(self, name: str, rate: int) -> None:
        self.name = name
        self.rate = rate
        self.left = 0.0
        self.until = 0.0
        self.used: list[tuple[float, float]] = []

    def ask(self, record: dict[str, Any], now: float, weight: float, wanted: float) -> dict[str, Any]:
        request = RateRequest("r", self.rate, 1.0, self.name, self.left, tuple(self.used), weight, wanted)
        record, answer = exchange(record, Moment(now), request)
        self.left = answer.granted + (0.0 if answer.lost else self.left)
        self.until = answer.until
        self.used = []
        return record


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),  # who
        st.floats(0, 0.4),  # how much later
        st.sampled_from(["ask", "use", "die"]),
        st.sampled_from([0.5, 1.0, 3.0]),  # weight
    ),
    max_size=80,
)


@given(st.integers(3, 20), STEPS)
def test_no_stretch_of_a_period_has_more_than_the_rate(
    rate: int, steps: list[tuple[int, float, str, float]]
) -> None:
    now, record, made = 100.0, dict[str, Any](), 0
    starts: list[tuple[float, float]] = []
    holders = [Holder(f"h{number}", rate) for number in range(4)]
    for who, later, what, weight in steps:
        now += later
        holder = holders[who]
        if what == "ask":
            record = holder.ask(record, now, weight, weight * 4)
        elif what == "use" and weight <= holder.left and now < holder.until:
            holder.left -= weight
            holder.used.append((now, weight))
            starts.append((now, weight))
        elif what == "die":  # with what it had used, and told nobody
            made += 1
            holders[who] = Holder(f"again{made}", rate)
        for began, _ in starts:
            assert sum(w for at, w in starts if began <= at < began + 1 - 2 * EARLY) <= rate + 1e-6
    assert len(record.get("used", ())) <= 260


def asked(
    record: dict[str, Any], now: float, lease: str, **options: Any
) -> tuple[dict[str, Any], RateAnswer]:
    given: dict[str, Any] = {"held": 0.0, "used": (), "least": 1.0, "wanted": 100.0} | options
    return exchange(record, Moment(now), RateRequest("r", 10, 1.0, lease, **given))


def test_weight_comes_back_one_period_after_its_use() -> None:
    record, answer = asked({}, 5.0, "a")
    assert answer.granted == 10
    record, answer = asked(record, 5.1, "a", used=((5.05, 10.0),))
    assert answer.granted == 0
    assert answer.again == pytest.approx(5.3)  # to show itself; at 6.05 there is some
    record, answer = asked(record, 6.04, "a")
    assert answer.granted == 0
    assert answer.again == pytest.approx(6.05)
    assert asked(record, 6.05, "a")[1].granted == 10


def test_each_of_several_that_wait_is_given_its_part() -> None:
    record, _ = asked({}, 5.0, "a")
    for name in "bcde":
        record, answer = asked(record, 5.01, name)
        assert answer.granted == 0
    record, answer = asked(record, 5.02, "a")  # gives back what it has not used, and wants as much again
    assert answer.granted == 2
    assert asked(record, 5.03, "b")[1].granted == 2


def test_a_heavy_call_is_not_starved_by_light_ones_of_others() -> None:
    record, _ = asked({}, 5.0, "light", wanted=10.0)
    record, _ = asked(record, 5.01, "light", used=((5.0, 10.0),))
    record, _ = asked(record, 5.9, "heavy", least=8.0, wanted=8.0)
    record, answer = asked(record, 6.001, "light")
    assert answer.granted == 2
    assert asked(record, 6.002, "heavy", least=8.0, wanted=8.0)[1].granted == 8


def used_up(now: float = 5.0) -> dict[str, Any]:
    """A record of which all is used at this moment, by one who waits for nothing."""
    record, _ = asked({}, now, "first", wanted=10.0)
    record, _ = asked(record, now, "first", used=((now, 10.0),), least=0.0, wanted=0.0)
    return record


def test_of_heavy_calls_the_one_that_has_waited_for_longest_is_served_first() -> None:
    heavy: dict[str, Any] = {"least": 8.0, "wanted": 8.0}
    record = used_up()
    for tenth in range(1, 10):
        record, answer = asked(record, 5 + tenth / 10, "ba"[tenth % 2], **heavy)
        assert answer.granted == 0
    for now, name, granted in ((6.001, "b", 0), (6.002, "a", 8), (6.003, "b", 0)):
        record, answer = asked(record, now, name, **heavy)
        assert answer.granted == granted


def test_who_has_waited_for_longest_is_served_also_if_it_comes_when_its_lease_is_over() -> None:
    heavy: dict[str, Any] = {"least": 8.0, "wanted": 8.0}
    record = used_up()
    for tenth in range(1, 20):  # each comes again 0.3 s after it came last
        name, since = (("a", 5.1), ("b", 5.2), ("c", 5.3))[tenth % 3 - 1]
        record, answer = asked(record, 5 + tenth / 10, name, since=since, **heavy)
        if answer.granted:
            assert (name, tenth) == ("a", 10)
            return
    raise AssertionError("nobody was served")


def test_who_has_been_served_waits_anew() -> None:
    heavy: dict[str, Any] = {"least": 8.0, "wanted": 8.0}
    record, answer = asked({}, 5.0, "a", least=10.0, wanted=10.0)
    assert not answer.lost
    record, _ = asked(record, 5.1, "b", **heavy)
    record, _ = asked(record, 5.2, "a", used=((5.0, 10.0),), **heavy)
    for tenth in range(3, 10):
        record, _ = asked(record, 5 + tenth / 10, "ab"[tenth % 2], **heavy)
    assert asked(record, 6.001, "a", **heavy)[1].granted == 0
    assert asked(record, 6.001, "b", **heavy)[1].granted == 8


@pytest.mark.parametrize(("least", "granted"), [(1.0, 1), (2.0, 0)])
def test_only_for_a_heavy_call_what_it_needs_is_kept_back(least: float, granted: int) -> None:
    record, _ = asked({}, 5.0, "first", wanted=10.0)
    used = ((5.0, least), (5.2, 10 - least))
    record, _ = asked(record, 5.2, "first", used=used, least=0.0, wanted=0.0)
    record, _ = asked(record, 5.9, "waits", least=least, wanted=least)
    assert asked(record, 6.001, "other", wanted=1.0)[1].granted == granted


def test_who_waits_for_nothing_has_no_part() -> None:
    record, answer = asked({}, 5.0, "a", wanted=2.0)
    assert answer.granted == 2
    assert asked(record, 5.01, "b")[1].granted == 8


def test_it_makes_sense_to_ask_again_when_enough_will_be_free() -> None:
    record, _ = asked({}, 5.0, "a", wanted=8.0)
    record, _ = asked(record, 5.1, "a", used=((5.0, 3.0), (5.05, 5.0)), least=0.0, wanted=0.0)
    for least, again in ((2.0, 5.9), (5.0, 6.0), (6.0, 6.05), (10.0, 6.05)):
        assert asked(record, 5.9, "b", least=least, wanted=least)[1].again == pytest.approx(again)


def test_what_is_held_counts_for_what_is_needed_and_wanted() -> None:
    record, _ = asked({}, 5.0, "a", wanted=3.0)
    record, answer = asked(record, 5.1, "a", held=3.0, least=5.0, wanted=6.0)
    assert answer.granted == 3
    for name, held in (("a", 6.0), ("b", 0.0)):
        assert asked(record, 5.1, name, held=held)[1].granted == 4


def test_uses_of_about_the_same_moment_are_one_at_the_latest_of_them() -> None:
    record, _ = asked({}, 5.0, "a")
    record, _ = asked(record, 5.1, "a", used=((5.001, 3.0), (5.002, 4.0)), least=0.0, wanted=0.0)
    assert record["used"] == [[5.002, 7.0]]


def test_times_are_told_by_the_clock_of_the_loop() -> None:
    request = RateRequest("r", 10, 1.0, "a", 0.0, (), 1.0, 10.0)
    record, answer = exchange({}, Moment(100.0, ahead=90.0), request)
    assert (answer.until, answer.again) == (10.25, 10.0)
    request = replace(request, used=((10.1, 10.0),), least=0.0, wanted=0.0)
    record, _ = exchange(record, Moment(100.2, ahead=90.0), request)
    assert asked(record, 101.09, "b")[1].granted == 0
    assert asked(record, 101.11, "b")[1].granted == 10


def test_a_lease_that_ran_out_counts_as_used_when_it_did() -> None:
    record, answer = asked({}, 5.0, "dead")
    assert answer.until == 5.0 + lease_length(1.0)
    record, answer = asked(record, 5.5, "b")
    assert answer.granted == 0
    record, answer = asked(record, answer.until + 0.4, "b")
    assert asked(record, 6.2501, "b")[1].granted == 10


def test_what_is_reported_of_a_lease_that_ran_out_is_counted_already() -> None:
    record, _ = asked({}, 5.0, "late")
    record, answer = asked(record, 5.5, "late", held=4.0, used=((5.01, 6.0),))
    assert answer.lost
    assert answer.granted == 0
    assert asked(record, 6.2501, "b")[1].granted == 10


def test_what_a_clock_that_began_anew_has_left_is_forgotten() -> None:
    record, _ = asked({}, 1_000_000.0, "a")
    record, _ = asked(record, 1_000_000.1, "a", used=((1_000_000.0, 10.0),))
    assert asked(record, 3.0, "b")[1].granted == 10


def test_another_rate_is_refused_while_somebody_has_the_first() -> None:
    record, _ = asked({}, 5.0, "a")
    with pytest.raises(PipelineError, match="10 in 1 s for others, and 20 in 1 s here"):
        exchange(record, Moment(5.1), RateRequest("r", 20, 1.0, "b", 0.0, (), 1.0, 1.0))
    with pytest.raises(PipelineError, match="10 in 1 s for others, and 10 in 2 s here"):
        exchange(record, Moment(5.1), RateRequest("r", 10, 2.0, "b", 0.0, (), 1.0, 1.0))
    record, answer = exchange(record, Moment(7.0), RateRequest("r", 20, 1.0, "b", 0.0, (), 1.0, 20.0))
    assert answer.granted == 20
