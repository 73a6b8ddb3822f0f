"""The rule of places that are shared: who is given how many, and how the limit moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from asyncstream.errors import PipelineError
from asyncstream.guards.shared.places import (
    GRACE,
    LEASE,
    PlacesAnswer,
    PlacesRequest,
    PlacesRule,
    exchange,
)
from asyncstream.guards.shared.records import Moment
from asyncstream.lease import Holder, enter, leave

RULE = PlacesRule(least=2, most=20, start=10.0, decrease=0.5)


def elsewhere(name: str) -> Holder:
    """A holder on another machine."""
    return Holder("elsewhere", 1, 1, "realm", name, 0)


def ask(
    record: dict[str, Any], now: float, name: str = "a", *, ahead: float = 0.0, **more: Any
) -> tuple[dict[str, Any], PlacesAnswer]:
    fields: dict[str, Any] = {"rule": RULE, "holder": elsewhere(name), "running": 0, "held": 0, "wanted": 0}
    return exchange(record, Moment(now, ahead), PlacesRequest("p", **fields | more))


def limit(record: dict[str, Any], now: float, **more: Any) -> float:
    """What the limit is, in fractions, once `a` has told this."""
    found: float = ask(record, now, **more)[0]["limit"]
    return found


# ------------------------------------------------------------------ who is given how many


def test_each_is_given_what_it_wants_of_what_the_others_do_not_have() -> None:
    record, answer = ask({}, 5.0, wanted=7)
    assert (answer.places, answer.scarce, answer.limit, answer.until) == (7, False, 10, 5.0 + LEASE)
    record, answer = ask(record, 5.1, "b", wanted=7)
    assert answer.places == 3
    record, answer = ask(record, 5.2, running=7, held=7, wanted=7)
    assert answer.scarce
    assert answer.places == 5  # an equal part: it is to start no others for two of those that run
    assert ask(record, 5.3, "b", running=3, held=3, wanted=7)[1].places == 3  # two still run
    record, _ = ask(record, 5.4, running=5, held=5, wanted=7)
    assert ask(record, 5.5, "b", running=3, held=3, wanted=7)[1].places == 5


def test_a_place_that_comes_free_goes_to_who_has_waited_longest_without_any() -> None:
    rule = replace(RULE, least=1, most=1, start=1.0)
    record, _ = ask({}, 5.0, "a", rule=rule, wanted=1)
    for now, name in ((5.1, "b"), (5.1, "c"), (5.2, "d")):
        record, answer = ask(record, now, name, rule=rule, wanted=1)
        assert answer.places == 0
    record, answer = ask(record, 5.3, "a", rule=rule, wanted=1)  # it has waited since now
    assert answer.places == 0
    for name, places in (("d", 0), ("b", 1), ("c", 1)):
        assert ask(record, 5.4, name, rule=rule, wanted=1)[1].places == places


def test_when_there_is_too_little_none_is_given_more_than_an_equal_part_or_one_place() -> None:
    rule = replace(RULE, most=2, start=2.0)
    record, _ = ask({}, 5.0, "a", rule=rule, wanted=2)
    for name in "bc":
        record, _ = ask(record, 5.1, name, rule=rule, wanted=2)
    record, _ = ask(record, 5.2, "a", rule=rule)
    record, answer = ask(record, 5.3, "b", rule=rule, wanted=2)
    assert answer.places == 1
    assert ask(record, 5.4, "c", rule=rule, wanted=2)[1].places == 1


def test_when_there_is_enough_it_may_be_more_than_an_equal_part() -> None:
    record, _ = ask({}, 5.0, "a", wanted=2)
    _, answer = ask(record, 5.1, "b", wanted=7)
    assert (answer.places, answer.scarce) == (7, False)


def test_what_a_holder_may_start_before_it_has_the_answer_is_not_given_to_others() -> None:
    record, _ = ask({}, 5.0, "a", wanted=7)
    record, answer = ask(record, 5.1, "a", running=2, held=7, wanted=2)
    assert answer.places == 2
    assert ask(record, 5.1, "b", wanted=9)[1].places == 3


def test_who_has_died_waits_for_nothing() -> None:
    here = Holder.here(0)
    enter(here, lambda: True)
    record, _ = ask({}, 5.0, "a", running=10, held=10, wanted=10)
    record, _ = ask(record, 5.1, holder=here, wanted=10)
    assert ask(record, 5.2, "a", wanted=4)[1].scarce
    leave(here)
    assert not ask(record, 5.2, "a", wanted=4)[1].scarce


def test_who_does_not_show_itself_in_time_has_its_places_taken() -> None:
    record, _ = ask({}, 5.0, wanted=10)
    assert ask(record, 5.0 + LEASE - 0.01, "b", wanted=4)[1].places == 0
    record, answer = ask(record, 5.0 + LEASE, "b", wanted=4)
    assert answer.places == 4
    assert not answer.scarce


def test_one_that_is_seen_to_live_gets_a_while_longer_and_a_dead_one_none() -> None:
    here = Holder.here(0)
    enter(here, lambda: True)
    record, _ = ask({}, 5.0, holder=here, running=10, held=10, wanted=10)
    assert ask(record, 5.0 + LEASE + GRACE - 0.01, "b", wanted=4)[1].places == 0
    assert ask(record, 5.0 + LEASE + GRACE, "b", wanted=4)[1].places == 4
    leave(here)
    assert ask(record, 5.01, "b", wanted=4)[1].places == 4


def test_what_a_clock_that_began_anew_has_left_is_forgotten() -> None:
    record, _ = ask({}, 1_000_000.0, wanted=10)
    assert ask(record, 3.0, "b", wanted=10)[1].places == 10


def test_times_are_told_by_the_clock_of_the_loop() -> None:
    assert ask({}, 100.0, ahead=90.0, wanted=1)[1].until == 10.0 + LEASE


def test_who_has_and_wants_no_place_is_not_kept() -> None:
    record, _ = ask({}, 5.0, wanted=3)
    assert ask(record, 5.1)[0]["holders"] == {}


# ------------------------------------------------------------------ how the limit moves


def test_a_limits_worth_of_good_answers_raises_it_by_one_while_half_of_it_is_used() -> None:
    record, _ = ask({}, 5.0, running=4, held=4, wanted=4)
    assert limit(record, 5.1, running=4, wanted=4, answers=10) == 10
    other: dict[str, Any] = {"holder": elsewhere("b"), "running": 1, "wanted": 1, "answers": 10}
    assert limit(record, 5.1, **other) == 11
    assert limit(record, 5.1, **other | {"answers": 5}) == 10.5
    assert limit(record, 5.1, **other | {"answers": 5000}) == 20


def test_a_call_that_met_an_overloaded_service_cuts_it_if_it_began_after_the_last_cut() -> None:
    record, answer = ask({}, 5.0, overload=4.0)
    assert (record["limit"], answer.limit, answer.cuts) == (5, 5, 1)
    record, answer = ask(record, 5.5, overload=4.9)
    assert (record["limit"], answer.cuts) == (5, 0)
    record, answer = ask(record, 6.0, overload=-1.0, ahead=6.5)
    assert (record["limit"], answer.limit, answer.cuts) == (2.5, 2, 1)
    record, answer = ask(record, 7.0, overload=6.0)
    assert (record["limit"], answer.cuts) == (2, 1)
    assert ask(record, 8.0)[1].cuts == 0


def test_a_cut_in_the_future_of_a_clock_that_began_anew_does_not_keep_the_next_away() -> None:
    record, _ = ask({}, 1_000_000.0, overload=1_000_000.0)
    assert limit(record, 3.0, overload=3.0) == 2.5


def test_other_settings_are_refused_while_others_go_by_the_first_and_then_it_begins_with_them() -> None:
    record, _ = ask({}, 5.0, wanted=1, overload=5.0)
    other: dict[str, Any] = {"holder": elsewhere("b"), "rule": replace(RULE, start=8.0)}
    with pytest.raises(PipelineError, match="other settings"):
        ask(record, 5.0 + LEASE - 0.01, **other)
    assert limit(record, 5.0 + LEASE, **other, overload=4.0) == 4
