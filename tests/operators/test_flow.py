"""How a full inbox makes those who feed it wait, and when it lets them go on."""

from __future__ import annotations

from typing import Any

import pytest

from asyncstream.elements import Timestamps
from asyncstream.operators.base import Operator
from asyncstream.operators.flow import Gate, Intake


class Inbox(Intake):
    """Keeps what comes until the test takes it."""

    def __init__(self, limit: int, *gates: Gate) -> None:
        super().__init__(limit)
        self.gates = gates
        self.kept: list[Any] = []

    def waiting(self) -> int:
        return len(self.kept)

    def process_batch(self, values: Any, timestamps: Timestamps) -> None:
        self.kept += values
        self._hold_if_full()

    def take(self, count: int) -> None:
        del self.kept[:count]
        self._release_if_drained()


class Driver:
    """Whoever owns a gate; counts how often it was told that the way is open."""

    def __init__(self) -> None:
        self.told = 0
        self.gate = Gate(self._reopened)

    def _reopened(self) -> None:
        self.told += 1


def test_gate_is_open_while_nobody_holds_it() -> None:
    driver = Driver()
    assert driver.gate.is_open()
    driver.gate.hold()
    assert not driver.gate.is_open()
    driver.gate.release()
    assert driver.gate.is_open()
    assert driver.told == 1


def test_gate_held_twice_opens_with_the_second_release_and_tells_once() -> None:
    driver = Driver()
    driver.gate.hold()
    driver.gate.hold()
    driver.gate.release()
    assert not driver.gate.is_open()
    assert driver.told == 0
    driver.gate.release()
    assert driver.gate.is_open()
    assert driver.told == 1


def test_inbox_holds_its_feeders_exactly_at_its_limit() -> None:
    driver = Driver()
    inbox = Inbox(4, driver.gate)
    inbox.process_batch([1, 2, 3], None)
    assert driver.gate.is_open()
    inbox.process(4, None)
    assert not driver.gate.is_open()


def test_inbox_lets_go_when_half_has_been_taken_not_before() -> None:
    driver = Driver()
    inbox = Inbox(4, driver.gate)
    inbox.process_batch([1, 2, 3, 4], None)
    inbox.take(1)
    assert not driver.gate.is_open()
    inbox.take(1)
    assert driver.gate.is_open()
    assert driver.told == 1
    inbox.take(2)
    assert driver.told == 1


def test_burst_beyond_the_limit_is_accepted_whole_and_holds_once() -> None:
    driver = Driver()
    inbox = Inbox(4, driver.gate)
    inbox.process_batch(list(range(100)), None)
    inbox.process_batch(list(range(100)), None)
    assert inbox.waiting() == 200
    inbox.take(198)
    assert driver.gate.is_open()
    assert driver.told == 1


def test_every_feeder_is_held_and_let_go() -> None:
    drivers = [Driver() for _ in range(3)]
    inbox = Inbox(2, *(driver.gate for driver in drivers))
    inbox.process_batch([1, 2], None)
    assert not any(driver.gate.is_open() for driver in drivers)
    inbox.take(1)
    assert all(driver.gate.is_open() for driver in drivers)


def test_feeder_of_two_inboxes_waits_for_both() -> None:
    driver = Driver()
    first, second = Inbox(2, driver.gate), Inbox(2, driver.gate)
    first.process_batch([1, 2], None)
    second.process_batch([1, 2], None)
    first.take(2)
    assert not driver.gate.is_open()
    second.take(2)
    assert driver.gate.is_open()
    assert driver.told == 1


def test_feeder_that_pushes_as_soon_as_it_is_told_fills_the_inbox_again() -> None:
    """Told from within the release: what it pushes then must hold it as at any other time."""

    class Eager(Driver):
        def _reopened(self) -> None:
            super()._reopened()
            inbox.process_batch([1, 2, 3, 4], None)

    driver = Eager()
    inbox = Inbox(4, driver.gate)
    inbox.process_batch([1, 2, 3, 4], None)
    inbox.take(2)
    assert driver.told == 1
    assert not driver.gate.is_open()
    inbox.take(4)
    assert driver.told == 2


def test_inbox_of_one_lets_go_when_it_is_empty() -> None:
    driver = Driver()
    inbox = Inbox(1, driver.gate)
    inbox.process(1, None)
    assert not driver.gate.is_open()
    inbox.take(1)
    assert driver.gate.is_open()


def test_intake_that_does_not_say_how_much_waits_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="Intake"):
        Intake(1).waiting()
    assert isinstance(Intake(1), Operator)
