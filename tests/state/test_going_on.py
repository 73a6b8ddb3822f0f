"""What follows from tables is found out in slices, or goes on with them: then it costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from asyncstream.clock import ManualClock
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.process import KeyedProcessFunction, KeyedProcessOperator
from asyncstream.state import Table, TimeToLive, ValueDescriptor
from asyncstream.state.rows import same
from asyncstream.windowing import Count, SessionWindows, WindowPlan, window_operator
from tests.operators.recorder import Recorder

TTL_MS = 50


class Remembers(KeyedProcessFunction[int, Any]):
    """Keeps the last element of each key for a while, and tells of it at its time."""

    def open(self, ctx: Any) -> None:
        ttl = TimeToLive(timedelta(milliseconds=TTL_MS))
        self.state = ctx.state(ValueDescriptor[int]("last", ttl=ttl))

    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        self.state.set(value)
        ctx.register_event_timer(value)

    def on_timer(self, timestamp: int, ctx: Any, out: Any) -> None:
        out((timestamp, self.state.get()))


def process() -> Operator:
    return KeyedProcessOperator(lambda value: value, Remembers())


def sessions() -> Operator:
    plan = WindowPlan(SessionWindows(timedelta(milliseconds=10)), aggregate=Count())
    return window_operator(lambda value: value, plan)


def followed(operator: Any) -> list[Any]:
    """What an operator has found out about its tables."""
    if isinstance(operator, KeyedProcessOperator):
        return [operator._timers.event._heap, *(ages._visits for ages in operator._state._ages)]
    return [operator._waiting]


def opened(make: Callable[[], Operator], clock: ManualClock) -> Operator:
    operator = make()
    operator.out = Recorder()
    operator.open(OperatorContext(clock=clock))
    return operator


@pytest.mark.parametrize("make", [process, sessions])
def test_it_goes_on_with_the_tables(make: Callable[[], Operator]) -> None:
    clock = ManualClock()
    before = opened(make, clock)
    for number in range(3):
        before.process_batch([number, number + 10], [number, number + 10])
        before.tables.cut()
        before.tables.merge()
        after = opened(make, clock)
        after.tables.go_on(before.tables, {})
        assert [id(part) for part in followed(after)] == [id(part) for part in followed(before)]
        before = after
    clock.set_ms(TTL_MS)
    before.process_batch([30], [30])
    before.advance_watermark(100)
    if make is process:
        assert before.metrics() == {"state_entries": 1, "event_timers": 0, "processing_timers": 0}
    else:
        assert before.metrics()["windows_open"] == 0


@pytest.mark.parametrize("make", [process, sessions])
def test_it_is_found_out_in_slices(make: Callable[[], Operator]) -> None:
    before, after = opened(make, ManualClock()), opened(make, ManualClock())
    before.process_batch(range(20_000), range(20_000))
    after.restore(before.snapshot())
    assert sum(1 for _ in after.tables._tell_restored()) >= 10
    assert after.due_ms() == before.due_ms()


def test_values_are_loaded_in_the_dict_in_which_they_are_and_keys_in_another() -> None:
    """To let one of a million rows grow holds the event loop."""
    for load_key, is_same in ((same, True), (str, False)):
        kept, table = Table("t"), Table("t", load=str, load_key=load_key)
        kept.put_old([((0, 9), [(number, number) for number in range(5_000)])])
        rows = kept._old.of((0, 9))
        assert sum(1 for _ in table.take_over(kept)) == 3
        assert (table._old.of((0, 9)) is rows) is is_same
        assert list(table.items()) == [((0, 9), load_key(number), str(number)) for number in range(5_000)]
        assert not len(kept)


@pytest.mark.parametrize("make", [process, sessions])
def test_rows_of_an_earlier_run_are_looked_through(make: Callable[[], Operator]) -> None:
    """What was found out about other rows does not hold for them."""
    before, after = opened(make, ManualClock()), opened(make, ManualClock())
    before.process_batch([5], [5])
    after.process_batch([3], [3])
    after.restore(before.snapshot())
    assert after.due_ms() == before.due_ms()
