"""Timers: boundaries, order, re-entrancy, waking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.state import Tables, timer_queue
from asyncstream.state.timer_queue import EndlessTimers, Timer, TimerQueue, timer_table
from asyncstream.timers import TimerService


class Service:
    """A timer service that writes down what fires and when it asks to be woken."""

    def __init__(self) -> None:
        self.fired: list[Any] = []
        self.woken: list[int] = []
        self.tables = Tables()
        self.timers = TimerService(
            lambda *timer: self.fired.append(("event", *timer)),
            lambda *timer: self.fired.append(("processing", *timer)),
            self.woken.append,
            tables=self.tables,
        )


def test_fires_at_its_time_exactly_and_once() -> None:
    service = Service()
    service.timers.event.register(10, "a", "x")
    service.timers.advance_watermark(9)
    assert service.fired == []
    service.timers.advance_watermark(10)
    service.timers.advance_watermark(11)
    assert service.fired == [("event", 10, "a", "x")]


def test_equal_times_fire_in_the_order_of_registration() -> None:
    service = Service()
    for key in "cab":
        service.timers.event.register(10, key)
    service.timers.event.register(9, "z")
    service.timers.event.register(10, "c")  # it is there already and keeps its place
    service.timers.event.delete(10, "a")
    service.timers.event.register(10, "a")  # it is new and goes to the end
    service.timers.advance_watermark(20)
    assert [timer[2] for timer in service.fired] == ["z", "c", "b", "a"]


def test_keys_need_not_be_comparable() -> None:
    queue = TimerQueue()
    fired: list[Any] = []
    for key in (None, "a", 1, ("x",)):
        queue.register(5, key)
    queue.advance(5, lambda *timer: fired.append(timer[1]))
    assert fired == [None, "a", 1, ("x",)]


@pytest.mark.parametrize("others", [0, 1])
def test_a_key_that_looks_like_a_timer_is_not_taken_for_it(others: int) -> None:
    """Of a timer alone at its time the key is kept without a namespace, unless it is a tuple."""
    queue = TimerQueue()
    for number in range(others):
        queue.register(5, number)
    queue.register(5, "a", "x")
    queue.delete(5, ("a", "x"))
    queue.delete(5, "a")
    assert Timer(5, "a", "x") in list(queue)
    queue.delete(5, "a", "x")
    queue.register(5, ("a", "x"))
    queue.delete(5, "a", "x")
    assert Timer(5, ("a", "x"), None) in list(queue)
    queue.delete(5, ("a", "x"))
    assert len(queue) == others


def test_the_earliest_is_known_whichever_was_set_last() -> None:
    queue = TimerQueue()
    for timestamp in (10, 20, 15):
        queue.register(timestamp, "k")
    for timestamp in (10, 15, 20):
        assert queue.earliest() == timestamp
        assert queue.pop(timestamp) == (timestamp, [(timestamp, "k")])
    assert queue.earliest() is None


def test_what_is_due_already_waits_for_the_next_watermark() -> None:
    service = Service()
    service.timers.advance_watermark(10)
    service.timers.event.register(3, "a")
    assert service.fired == []
    service.timers.advance_watermark(11)
    assert service.fired == [("event", 3, "a", None)]


def test_a_callback_may_register_earlier_and_equal_timers_which_fire_in_the_same_pass() -> None:
    queue = TimerQueue()
    fired: list[Any] = []

    def fire(timestamp: int, key: str, namespace: None) -> None:
        fired.append((timestamp, key))
        if key == "a":
            queue.register(2, "earlier")
            queue.register(5, "same")
            queue.register(9, "later")
            queue.delete(5, "b")

    for key in "abc":
        queue.register(5, key)
    queue.advance(8, fire)
    assert fired == [(5, "a"), (2, "earlier"), (5, "c"), (5, "same")]
    assert list(queue) == [Timer(9, "later", None)]


@pytest.mark.parametrize("keys", ["a", "abc"])
@pytest.mark.parametrize("back", [0, 1])
def test_timers_set_for_ever_for_what_is_due_are_an_error(
    monkeypatch: pytest.MonkeyPatch, keys: str, back: int
) -> None:
    monkeypatch.setattr(timer_queue, "_RUNAWAY", 100)
    blamed: list[Timer] = []

    def blame(timer: Timer, error: BaseException) -> BaseException:
        blamed.append(timer)
        return error

    queue, fired = TimerQueue(), list[int]()

    def fire(timestamp: int, key: str, namespace: None) -> None:
        fired.append(timestamp)
        assert len(fired) < 2000
        queue.register(timestamp - back, key)

    for key in keys:
        queue.register(5, key)
    with pytest.raises(EndlessTimers, match="set later ones"):
        queue.advance(8, fire, blame)
    assert [(timer.timestamp, timer.key in keys) for timer in blamed] == [(fired[-1], True)]


def test_however_many_timers_set_earlier_ones_that_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_queue, "_RUNAWAY", 100)
    queue, fired = TimerQueue(), list[int]()

    def fire(timestamp: int, key: int, namespace: None) -> None:
        fired.append(timestamp)
        if timestamp % 10 == 0:
            queue.register(timestamp - 1, key)
        elif timestamp < 100:
            queue.register(timestamp + 11, key)

    for key in range(1000):
        queue.register(10, key)
    queue.advance(1000, fire)
    assert len(fired) == 1000 * 2 * 11


@pytest.mark.parametrize("at_once", [1, 4, 99])
def test_timers_that_come_further_are_no_error_though_each_sets_some_before_all(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(timer_queue, "_RUNAWAY", 100)
    monkeypatch.setattr(timer_queue, "TIMERS", 10)  # after which the last is always one of those at 0
    queue, later = TimerQueue(), list[int]()

    def fire(timestamp: int, key: int, namespace: None) -> None:
        if timestamp:
            later.append(timestamp)
            queue.register(timestamp + 1, 0)
            for number in range(at_once):
                queue.register(0, number)

    queue.register(1, 0)
    queue.advance(500, fire)
    assert later == list(range(1, 501))


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("late", [1, 2, 4, 9])
def test_timers_set_for_long_ago_are_no_error_while_time_goes_on(
    monkeypatch: pytest.MonkeyPatch, late: int, far: bool
) -> None:
    monkeypatch.setattr(timer_queue, "_RUNAWAY", 100)
    monkeypatch.setattr(timer_queue, "TIMERS", 10)
    queue, fired = TimerQueue(), list[int]()

    def fire(timestamp: int, key: str, namespace: None) -> None:
        fired.append(timestamp)
        if late <= timestamp < 500:
            queue.register(timestamp + 1, key)
            for past in range(late):
                queue.register(past, key)

    if far:
        queue.register(10_000, "a")  # behind it no other is the latest
    queue.register(10, "a")
    queue.advance(1000, fire)
    assert len(fired) == 491 + 490 * late


class Counted(dict[Any, None]):
    """A bucket that counts how many timers were gone through."""

    through = 0

    def __iter__(self) -> Iterator[Any]:
        self.through += len(self)
        return super().__iter__()


def test_timers_of_one_time_are_gone_through_once_though_each_sets_an_earlier_one() -> None:
    table = timer_table("timers")
    queue = TimerQueue(table)
    fired: list[tuple[int, int]] = []

    def fire(timestamp: int, key: int, namespace: None) -> None:
        fired.append((timestamp, key))
        if timestamp == 50 and key < 100:
            queue.register(10, key)
            queue.register(50, key + 100)

    for key in range(100):
        queue.register(50, key)
    bucket = table.young[50] = Counted(table.young[50])
    queue.advance(50, fire)
    expected = [timer for key in range(100) for timer in ((50, key), (10, key))]
    assert fired == expected + [(50, key) for key in range(100, 200)]
    assert bucket.through <= 300


@pytest.mark.parametrize("earlier", [False, True])
def test_a_timer_that_is_set_again_while_its_time_fires_is_behind_the_others(
    earlier: bool,
) -> None:
    queue = TimerQueue()
    fired: list[str] = []

    def fire(timestamp: int, key: str, namespace: None) -> None:
        fired.append(key)
        if key == "a":
            queue.delete(5, "b")
            queue.register(5, "b")
            if earlier:
                queue.register(2, "early")

    for key in "abcd":
        queue.register(5, key)
    queue.advance(9, fire)
    assert "".join(fired) == ("aearlycdb" if earlier else "acdb")


def test_a_timer_that_pushes_itself_ahead_leaves_no_trail() -> None:
    queue = TimerQueue()
    for now in range(10_000):
        queue.delete(now + 999, "a")
        queue.register(now + 1_000, "a")
    assert len(queue) == 1
    assert len(queue._run) + len(queue._heap) < 200
    assert queue.earliest() == 10_999


def test_asks_to_be_woken_for_the_earliest_only() -> None:
    service = Service()
    for timestamp in (50, 70, 30, 30):
        service.timers.register_processing(timestamp, "a")
    assert service.woken == [50, 30]
    service.timers.advance_clock(49)
    assert service.fired == [("processing", 30, "a", None)]
    assert service.woken == [50, 30, 50]
    service.timers.advance_clock(80)
    assert [timer[1] for timer in service.fired] == [30, 50, 70]
    assert service.woken == [50, 30, 50]


def test_a_restore_brings_timers_back_and_asks_to_be_woken_but_forgets_the_watermark() -> None:
    service, other = Service(), Service()
    service.timers.event.register(10, "a", (0, 11))
    service.timers.register_processing(40, "b")
    service.timers.advance_watermark(5)
    other.timers.register_processing(7, "gone")
    other.tables.restore(service.tables.snapshot())
    assert other.timers.watermark == MIN_TIMESTAMP
    assert other.woken == [7, 40]
    other.timers.advance_watermark(10)
    other.timers.advance_clock(40)
    assert other.fired == [("event", 10, "a", (0, 11)), ("processing", 40, "b", None)]


@pytest.mark.parametrize("timestamp", [None, 1.5, "10"])
def test_a_timer_needs_an_integer(timestamp: Any) -> None:
    with pytest.raises(TypeError, match="a timer needs an int"):
        TimerQueue().register(timestamp, "a")
    with pytest.raises(TypeError, match="a timer needs an int"):
        TimerQueue().delete(timestamp, "a")


@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_timer_needs_a_key_that_can_be_hashed_however_many_share_its_time(others: int) -> None:
    queue = TimerQueue()
    for key in range(others):
        queue.register(10, key)
    unhashable: Any = ["a"]
    with pytest.raises(TypeError, match="unhashable"):
        queue.register(10, unhashable)
    with pytest.raises(ValueError, match="a key must equal itself"):
        queue.register(10, float("nan"))
    assert [timer.key for timer in queue] == list(range(others))


def test_timer_set_where_all_others_were_deleted_during_a_checkpoint_fires() -> None:
    table = timer_table("timers")
    queue = TimerQueue(table)
    queue.register(10, "a")
    table.cut()
    queue.delete(10, "a")
    assert queue.earliest() is None
    queue.register(10, "b")
    table.merge()
    queue.delete(10, "b")
    assert queue.earliest() is None
    queue.register(10, "c")
    assert [*queue] == [Timer(10, "c", None)]
    fired: list[Any] = []
    queue.advance(10, lambda *timer: fired.append(timer))
    assert fired == [(10, "c", None)]


KEYS = st.sampled_from(["a", None, ("a", None), ("a", 1)])
NAMESPACES = st.sampled_from([None, 1])


class Queue(RuleBasedStateMachine):
    """A queue against a list of timers, whatever is cut and merged in between."""

    def __init__(self) -> None:
        super().__init__()
        self.table = timer_table("timers")
        self.queue = TimerQueue(self.table)
        self.model: list[tuple[int, Any, Any]] = []
        self.now = 0
        self.merging: Iterator[None] = iter(())

    @rule(afters=st.lists(st.integers(1, 4), min_size=1, max_size=3), key=KEYS, namespace=NAMESPACES)
    def register(self, afters: list[int], key: Any, namespace: Any) -> None:
        for at in (self.now + after for after in afters):  # the last one may be between those before
            self.queue.register(at, key, namespace)
            if (at, key, namespace) not in self.model:
                self.model.append((at, key, namespace))

    @rule(after=st.integers(1, 4), key=KEYS, namespace=NAMESPACES)
    def delete(self, after: int, key: Any, namespace: Any) -> None:
        self.queue.delete(self.now + after, key, namespace)
        if (self.now + after, key, namespace) in self.model:
            self.model.remove((self.now + after, key, namespace))

    @rule(by=st.integers(0, 2))
    def advance(self, by: int) -> None:
        self.now += by
        fired: list[tuple[int, Any, Any]] = []
        self.queue.advance(self.now, lambda *timer: fired.append(timer))
        assert fired == self.due(self.now)
        self.model = [timer for timer in self.model if timer[0] > self.now]

    @rule(by=st.integers(0, 2))
    def pop(self, by: int) -> None:
        due = self.due(self.now + by)
        earliest = [(at, key) for at, key, _ in due if at == due[0][0]]
        assert self.queue.pop(self.now + by) == ((due[0][0], earliest) if due else None)
        self.model = [timer for timer in self.model if not due or timer[0] > due[0][0]]

    @rule()
    def ask_for_the_earliest(self) -> None:
        assert self.queue.earliest() == min((at for at, _, _ in self.model), default=None)

    @rule()
    def cut(self) -> None:
        for _ in self.merging:
            pass
        self.table.merge()
        self.table.cut()
        self.merging = self.table.merging()

    @rule()
    def merge_a_slice(self) -> None:
        next(self.merging, None)

    @invariant()
    def has_all_timers_in_their_order(self) -> None:
        assert [*map(tuple, self.queue)] == self.due(10**6)
        assert len(self.queue) == len(self.model)

    def due(self, until: int) -> list[tuple[int, Any, Any]]:
        return sorted((timer for timer in self.model if timer[0] <= until), key=lambda timer: timer[0])


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Sweeps, and slices of a merge, are not only for the large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer_queue, "_SWEEP", 1)
        patch.setattr("asyncstream.state.table.SLICE", 1)
        yield


TestQueue = Queue.TestCase
