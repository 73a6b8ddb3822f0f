"""Policy windows look at those keys only of which a window may end."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import timedelta
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.windowing.policies import PolicyWindowOperator, WindowManager, policy_window
from asyncstream.windowing.policies.schedule import Schedule
from tests.windowing.policies.subject import Subject

KEYS = 5


def ms(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def taken(schedule: Schedule, time_ms: int) -> list[Hashable]:
    schedule.reach(time_ms)
    found = list(schedule.due)
    schedule.due.clear()
    return found


def test_keys_are_due_in_the_order_in_which_they_came() -> None:
    schedule = Schedule()
    for key, time_ms in (("a", 30), ("b", None), ("c", 10), ("d", 20), ("b", 5), ("a", 25)):
        schedule.put(key, time_ms)
    assert schedule.next_ms() == 5
    assert taken(schedule, 4) == []
    assert taken(schedule, 25) == ["a", "b", "c", "d"]
    assert taken(schedule, 99) == []
    assert schedule.next_ms() is None


def test_a_key_that_comes_again_is_the_last() -> None:
    schedule = Schedule()
    for key in ("a", "b"):
        schedule.put(key, 10)
    schedule.forget("a")
    schedule.put("a", 10)
    assert taken(schedule, 10) == ["b", "a"]


def test_what_was_due_stays_due() -> None:
    schedule = Schedule()
    for key in ("a", "b"):
        schedule.put(key, 10)
    schedule.reach(10)
    assert schedule.due.popitem(last=False) == ("a", None)
    schedule.put("b", 12)
    assert schedule.next_ms() == 10
    assert taken(schedule, 15) == ["b"]


class EveryKey(Schedule):
    """Asks all keys, each time."""

    def __init__(self, operator: PolicyWindowOperator) -> None:
        super().__init__()
        self._operator = operator

    def _times_of_all(self) -> dict[Hashable, int]:
        managers = self._operator._managers.whole()
        times = {key: manager.due_ms() for key, manager in managers.items()}
        return {key: time_ms for key, time_ms in times.items() if time_ms is not None}

    def put(self, key: Hashable, time_ms: int | None) -> None:
        pass

    def forget(self, key: Hashable) -> None:
        pass

    def reach(self, time_ms: int) -> None:
        self.due.update({key: None for key, at_ms in self._times_of_all().items() if at_ms <= time_ms})

    def next_ms(self) -> int | None:
        return min(self._times_of_all().values(), default=None)


EXTENTS = st.one_of(st.integers(1, 4), st.sampled_from([ms(5), ms(10), ms(30)]))
STEPS = st.one_of(
    st.tuples(st.just("push"), st.lists(st.integers(-40, 40), min_size=1, max_size=6)),
    st.tuples(st.just("pass"), st.sampled_from([1, 7, 1000, 2500])),
    st.tuples(st.just("cut"), st.none()),
    st.tuples(st.just("restart"), st.none()),
)


@given(EXTENTS, EXTENTS, st.sampled_from(["event", "processing"]), st.lists(STEPS, max_size=25))
def test_nothing_differs_from_asking_every_key_each_time(
    length: Any, slide: Any, time: Literal["event", "processing"], steps: list[tuple[str, Any]]
) -> None:
    def made() -> PolicyWindowOperator:
        return policy_window(length, slide, key_by=lambda value: value % KEYS, time=time, lag=0.01)

    def asking_all() -> PolicyWindowOperator:
        operator = made()
        operator._schedule = EveryKey(operator)
        return operator

    ways = [(make, Subject(make(), 1_000)) for make in (made, asking_all)]
    for do, what in steps:
        for make, subject in ways:
            if do == "push":
                subject.push(*(subject.clock.now_ms() + each for each in what))
            elif do == "pass":
                subject.pass_time(what)
            elif do == "cut":
                subject.operator.tables.cut()
                subject.operator.tables.merge()
            else:
                subject.restart(make())
        assert ways[0][1].log == ways[1][1].log
    for _, subject in ways:
        subject.end()
    assert ways[0][1].log == ways[1][1].log


@pytest.mark.parametrize("time", ["event", "processing"])
@pytest.mark.parametrize("length", [ms(10_000), 3])
@pytest.mark.parametrize("slide", [ms(10_000), 3])
def test_a_key_is_asked_when_it_has_elements_or_is_due(
    monkeypatch: pytest.MonkeyPatch, length: Any, slide: Any, time: Literal["event", "processing"]
) -> None:
    asked: list[WindowManager] = []
    due_ms = WindowManager.due_ms

    def noted(manager: WindowManager) -> int | None:
        asked.append(manager)
        return due_ms(manager)

    subject = Subject(policy_window(length, slide, key_by=lambda value: value % 100, time=time), 1_000)
    subject.push(*range(1_000, 1_100))
    subject.pass_time()
    subject.pass_time()
    monkeypatch.setattr(WindowManager, "due_ms", noted)
    subject.pass_time()
    subject.push(4_007)
    subject.pass_time()
    assert len(set(map(id, asked))) <= 1
    subject.end()
    assert len({window.values[-1] % 100 for window in subject.named("window")}) == 100
