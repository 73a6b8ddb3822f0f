"""
Random programs for the async wait operator, against a model that is slow and obvious.

The model keeps every element in one list, in the order in which the operator holds them. Whenever the event
loop has come to rest it says exactly what must be out by now, what may run, what a snapshot holds and what
the metrics are. What is in motion is only followed, never predicted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from asyncstream.async_wait import OutputOrder
from asyncstream.elements import Control, Watermark
from tests.async_wait.rig import Log, Rig, ScriptedTimeLoop, passes

EXAMPLES = 40

TIMEOUT = 1.0
"""Seconds a call may run."""

KEYS = 3

HOW = ["at once", "suspends", "soils", "stubborn"]
"""Whether a call suspends, leaves a context variable behind, goes on for a while after it was cancelled."""

left_behind: ContextVar[int] = ContextVar("left_behind")


@dataclass(eq=False)
class Entry:
    """
    An element, or a watermark, that has been accepted.

    Attributes:
        number: of the element; its results are `10 * number` and what follows.
        results: what must come out for it; None while its call has not ended.
    """

    number: int = -1
    watermark: Watermark | None = None
    how: str = "at once"
    results: list[int] | None = None
    routed: bool = False
    began: float = 0.0
    answer: asyncio.Future[Any] | None = field(default=None, repr=False)
    over: asyncio.Future[None] | None = field(default=None, repr=False)

    @property
    def key(self) -> int:
        return self.number % KEYS

    @property
    def is_done(self) -> bool:
        return self.results is not None or self.watermark is not None


class AsyncWaitMachine(RuleBasedStateMachine):
    """Drives an operator; `check` is what must hold whenever the loop has come to rest."""

    order: OutputOrder

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.loop = ScriptedTimeLoop()
        self.log = Log()
        self.checked = 0  # records of the log that the model has accounted for
        self.entries: list[Entry] = []  # all, in input order
        self.inside: list[Entry] = []  # not emitted, as the operator holds them
        self.running: list[Entry] = []
        self.zombies: list[Entry] = []
        self.called: list[Entry] = []
        self.ended: list[int] = []  # numbers of elements, in the order in which they were completed
        self.restored = False
        self.settled = True
        self.numbers = 0
        self.clock = 0
        self.failed = False
        self.counts = dict.fromkeys(("failed", "timed_out", "skipped"), 0)
        self.on_error = data.draw(st.sampled_from(["skip", "route", "fail"]), "on_error")
        self.on_timeout = data.draw(st.sampled_from(["hook", "skip", "route"]), "on_timeout")
        self.replay = data.draw(st.sampled_from(["unfinished", "all"]), "replay")
        self.flat = data.draw(st.booleans(), "flat")
        self.isolation = data.draw(st.sampled_from(["pool", "pool", "task"]), "isolation")
        self.open(data, None)

    def open(self, data: st.DataObject, state: Any) -> None:
        self.concurrency = data.draw(st.integers(1, 3), "concurrency")
        self.buffer = self.concurrency + data.draw(st.integers(0, 4), "more buffer")
        self.rig = Rig(
            self.call,
            order=self.order,
            concurrency=self.concurrency,
            buffer=self.buffer,
            timeout=TIMEOUT,
            on_timeout=self.hook if self.on_timeout == "hook" else self.on_timeout,
            on_error=self.on_error,
            replay=self.replay,
            flat=self.flat,
            isolation=self.isolation,
            key_by=(lambda number: number % KEYS) if self.order is OutputOrder.PER_KEY else None,
            state=state,
        )
        self.rig.operator.out = self.log
        self.rig.operator.limit = 6
        self.closed = False
        self.called = []
        self.do(self.rig.__aenter__)

    def do(self, step: Callable[..., Any]) -> Any:
        return self.loop.run_until_complete(step())

    # ---------------------------------------------------------------- the user's code

    async def call(self, number: int) -> Any:
        entry = self.entry(number)
        assert entry not in self.running, "called twice"
        assert len(self.running) < self.concurrency, "more calls than may run"
        if self.order is OutputOrder.PER_KEY:
            assert all(other.key != entry.key for other in self.running), "two calls of one key"
        self.running.append(entry)
        self.called.append(entry)
        entry.began = self.loop.time()
        assert left_behind.get(None) is None, "another element's context"
        if entry.how == "soils":
            left_behind.set(number)
        entry.answer = self.loop.create_future()
        try:
            results = await entry.answer if entry.how != "at once" else self.results_of(entry)
            if isinstance(results, Exception):
                raise results
            entry.results = results
            self.ended.append(number)
            return results if self.flat else results[0]
        except asyncio.CancelledError:
            if entry.how == "stubborn" and not self.failed:
                entry.over = self.loop.create_future()
                self.zombies.append(entry)
                try:
                    await entry.over
                finally:
                    self.zombies.remove(entry)
                if number % 2:
                    return self.results_of(entry) if self.flat else 10 * number  # too late: nobody's
            raise
        except LookupError:
            self.count_failure(entry)
            raise
        finally:
            self.running.remove(entry)

    def hook(self, number: int) -> Any:
        entry = self.entry(number)
        assert entry.results is None, "timed out, but had ended"
        entry.results = [10 * number + 9]
        self.ended.append(number)
        return entry.results if self.flat else entry.results[0]

    def results_of(self, entry: Entry) -> list[int]:
        return [10 * entry.number + i for i in range(entry.number % 3 if self.flat else 1)]

    def entry(self, number: int) -> Entry:
        return next(entry for entry in self.entries if entry.number == number)

    def count_failure(self, entry: Entry) -> None:
        if self.failed:
            return
        self.counts["failed"] += 1
        self.give_up(entry, self.on_error)

    def give_up(self, entry: Entry, choice: str) -> None:
        if choice == "fail":
            self.failed = True
            return
        entry.results = []
        entry.routed = choice == "route"
        self.counts["skipped"] += choice == "skip"

    # ---------------------------------------------------------------- what may happen

    @precondition(lambda self: not self.failed)
    @rule(
        hows=st.lists(st.sampled_from(HOW), min_size=1, max_size=5),
        watermark=st.booleans(),
        rest=st.booleans(),
    )
    def feed(self, hows: list[str], watermark: bool, rest: bool) -> None:
        new = []
        for how in hows:
            new.append(Entry(self.numbers, how=how))
            self.numbers += 1
        self.entries += new
        self.inside += new
        self.rig.operator.process_batch([entry.number for entry in new], None)
        if watermark:
            self.clock += 1
            entry = Entry(watermark=Watermark(self.clock))
            self.entries.append(entry)
            self.inside.append(entry)
            self.rig.operator.advance_watermark(self.clock)
        self.rest(rest)

    @precondition(lambda self: not self.failed and self.answerable())
    @rule(data=st.data(), how_many=st.integers(1, 3), rest=st.booleans())
    def answer(self, data: st.DataObject, how_many: int, rest: bool) -> None:
        for _ in range(how_many):
            if calls := self.answerable():
                entry = data.draw(st.sampled_from(calls))
                assert entry.answer is not None
                if data.draw(st.integers(0, 4)) == 0:
                    entry.answer.set_result(LookupError(entry.number))
                else:
                    entry.answer.set_result(self.results_of(entry))
        self.rest(rest)

    def answerable(self) -> list[Entry]:
        return [
            entry
            for entry in self.running
            if entry not in self.zombies and entry.answer is not None and not entry.answer.done()
        ]

    @precondition(lambda self: self.zombies)
    @rule(rest=st.booleans())
    def end_a_call_that_was_timed_out(self, rest: bool) -> None:
        for zombie in self.zombies[:1]:
            assert zombie.over is not None
            if not zombie.over.done():
                zombie.over.set_result(None)
        self.rest(rest)

    @precondition(lambda self: self.settled and not self.failed)
    @rule(seconds=st.sampled_from([0.3, 0.6, 1.1]))
    def pass_time(self, seconds: float) -> None:
        self.loop.now = round(self.loop.now + seconds, 3)
        due = [
            entry
            for entry in self.running
            if entry not in self.zombies and entry.began + TIMEOUT <= self.loop.now + 1e-9
        ]
        self.counts["timed_out"] += len(due)
        for entry in due:
            if self.on_timeout != "hook":
                self.give_up(entry, self.on_timeout)
        self.rest(True)
        assert not [entry.number for entry in due if entry.results is None], "its time was up"

    @precondition(lambda self: self.settled)
    @rule()
    def close_or_open_the_way_downstream(self) -> None:
        self.closed = not self.closed
        if self.closed:
            self.rig.operator.emitting.hold()
        else:
            self.rig.operator.emitting.release()
        self.rest(True)

    @rule()
    def take_a_snapshot(self) -> None:
        self.check_snapshot()

    @rule(data=st.data(), first=st.booleans())
    def stop_and_restore(self, data: st.DataObject, first: bool) -> None:
        """`first`: the snapshot is taken before the stop, as a checkpoint is, and not after it."""
        state = self.check_snapshot()
        results = {entry.number: entry.results for entry in self.entries}
        self.failed = True  # what its calls do from now on is nobody's business
        for zombie in self.zombies:
            assert zombie.over is not None
            if not zombie.over.done():
                zombie.over.set_result(None)
        before = len(self.log.records)
        self.rig.operator.halt()
        self.do(self.rig.operator.stop)
        assert len(self.log.records) == before, "emitted after the stop"
        assert not self.running, "a call has survived the stop"
        if first:
            for entry in self.entries:
                entry.results = results.get(entry.number)
        else:
            state = self.check_snapshot()
        self.account(everything=False)
        self.inside = [self.of_snapshot(kept) for kept in state if kept[0] != "reached"]
        self.failed = False
        self.restored = True
        self.counts = dict.fromkeys(self.counts, 0)
        self.open(data, state)
        self.rest(True)

    def of_snapshot(self, kept: list[Any]) -> Entry:
        match kept:
            case ["watermark", timestamp]:
                return next(e for e in self.entries if e.watermark == Watermark(timestamp))
            case ["emitted", result, _]:
                entry = self.entry(result // 10)
                assert entry.results == [result]
                return entry
            case ["finished", number, None, results]:
                entry = self.entry(number)
                assert entry.results == results
                if self.replay == "all":
                    entry.results = None
                return entry
            case ["call", number, None]:
                entry = self.entry(number)
                entry.results, entry.routed = None, False
                return entry
        raise AssertionError(kept)

    # ---------------------------------------------------------------- what must hold

    def rest(self, rest: bool) -> None:
        self.settled = rest
        if rest:
            self.do(lambda: passes(40))
            self.check()

    def check(self) -> None:
        assert bool(self.rig.errors) == self.failed, self.rig.errors
        if self.failed:
            return
        self.account(everything=True)
        metrics = self.rig.operator.metrics()
        taken = self.inside[: len(self.inside) - metrics["waiting"]]
        for name, count in self.counts.items():
            assert metrics[name] == count, name
        assert metrics["running"] == len(self.running)
        assert metrics["overdue"] == len(self.zombies)
        assert metrics["held"] == len(taken) <= self.buffer

        # everybody is busy, or there is nothing to do
        all_busy = len(self.running) == self.concurrency
        assert all_busy or not metrics["waiting"] or len(taken) == self.buffer, "work that nobody takes"
        busy_keys = {entry.key for entry in self.running}
        for entry in taken:
            if not entry.is_done and entry not in self.running:
                assert self.order is OutputOrder.PER_KEY, "taken, and not called"
                assert all_busy or entry.key in busy_keys, "a free key that nobody takes"
        assert not metrics["waiting"] >= 6 or not self.rig.feeding.is_open()
        assert not metrics["waiting"] <= 3 or self.rig.feeding.is_open()

        # calls are made in input order
        numbers = [entry.number for entry in self.called]
        if self.order is OutputOrder.PER_KEY:
            for key in range(KEYS):
                of_key = [number for number in numbers if number % KEYS == key]
                assert of_key == sorted(of_key)
        else:
            assert numbers == sorted(numbers)

        # within a segment, results leave in the order in which calls ended; unless some run in the pool
        # and others, once enough have soiled their contexts, in tasks, whose ends are known a pass later
        soiled = sum(entry.how == "soils" for entry in self.entries)
        if not self.restored and soiled < 3 and self.order is not OutputOrder.ORDERED:
            order = {number: place for place, number in enumerate(self.ended)}
            in_segments = self.order is OutputOrder.EVENT_TIME
            for segment in segments(self.log.values) if in_segments else [results(self.log.values)]:
                places = [order[result // 10] for result in segment]
                assert places == sorted(places)

    def account(self, *, everything: bool) -> None:
        """Compare what has come out since the last time with what had to, and forget it."""
        new = self.log.values[self.checked :]
        self.checked = len(self.log.values)
        if not everything:
            for entry in [entry for entry in self.inside if self.is_out(entry)]:
                self.inside.remove(entry)
            return
        if self.closed:
            assert new == [], "emitted through a closed gate"
            return
        taken = self.inside[: len(self.inside) - self.rig.operator.metrics()["waiting"]]
        out = self.due(taken)
        self.inside = [entry for entry in self.inside if entry not in out]
        expected: list[Any] = []
        for entry in out:
            expected += [entry.watermark] if entry.watermark else entry.results or []
        if self.order is OutputOrder.ORDERED:
            assert new == expected
        elif self.order is OutputOrder.EVENT_TIME:
            assert list(map(sorted, segments(new))) == list(map(sorted, segments(expected)))
            assert controls(new) == controls(expected)
        else:
            assert sorted(results(new)) == sorted(results(expected))
            assert controls(new) == controls(expected)
        self.check_watermarks()
        if self.order is OutputOrder.PER_KEY:
            for key in range(KEYS):
                numbers = [value // 10 for value in results(self.log.values) if value // 10 % KEYS == key]
                assert numbers == sorted(numbers)
        assert len(set(results(self.log.values))) == len(results(self.log.values)), "emitted twice"

    def due(self, taken: list[Entry]) -> list[Entry]:
        """Which of the elements held must be out."""
        out: list[Entry] = []
        for place, entry in enumerate(taken):
            before = taken[:place]
            if self.order is OutputOrder.ORDERED:
                free = all(other.is_done for other in before)
            elif self.order is OutputOrder.EVENT_TIME:
                closing = [place for place, other in enumerate(before) if other.watermark]
                free = all(other.is_done for other in before[: closing[-1] if closing else 0])
            else:
                free = True
            if entry.watermark is not None:
                free = all(other.is_done for other in before)
            if free and entry.is_done:
                out.append(entry)
        return out

    def is_out(self, entry: Entry) -> bool:
        if entry.watermark is not None:
            return entry.watermark in self.log.values
        return any(value // 10 == entry.number for value in results(self.log.values))

    def check_watermarks(self) -> None:
        """No watermark before a result of an element before it; in event time none after one either."""
        seen = self.log.values
        for place, entry in enumerate(self.entries):
            if entry.watermark not in seen:
                continue
            at = seen.index(entry.watermark)
            after = {value // 10 for value in results(seen[at:])}
            assert not after & {other.number for other in self.entries[:place]}, "a watermark has overtaken"
            if self.order in (OutputOrder.ORDERED, OutputOrder.EVENT_TIME):
                ahead = {value // 10 for value in results(seen[:at])}
                assert not ahead & {other.number for other in self.entries[place:]}, "a record has overtaken"

    def check_snapshot(self) -> list[Any]:
        state: list[Any] = self.rig.operator.snapshot()
        assert self.rig.operator.snapshot() == state, "a snapshot has changed what it shows"
        places = {id(entry): place for place, entry in enumerate(self.entries)}
        kept = []
        for entry in state:
            match entry:
                case ["reached", timestamp]:
                    out = [e.watermark for e in self.entries if e.watermark and self.is_out(e)]
                    assert out[-1] == Watermark(timestamp)
                case ["watermark", timestamp]:
                    kept.append(next(e for e in self.entries if e.watermark == Watermark(timestamp)))
                case ["emitted", result, _]:
                    kept.append(self.entry(result // 10))
                case [kind, number, None, *results]:
                    found = self.entry(number)
                    if kind == "call" and found.results is not None and not found.routed:
                        # behind one that is called again; or it ended in a task of its own, at the
                        # moment at which the worker that waited for it was stopped
                        assert self.order is OutputOrder.PER_KEY or (
                            self.failed and self.isolation == "task"
                        ), "a result was thrown away"
                    assert results in ([], [found.results])
                    kept.append(found)
        emitted = [entry[1] for entry in state if entry[0] == "emitted"]
        inside = [places[id(entry)] for entry in kept if not {*(entry.results or ())} & {*emitted}]
        assert inside == sorted(inside), "not in input order"
        held = {places[id(entry)] for entry in kept}
        assert len(held) == len(kept), "twice in a snapshot"
        for entry in self.entries:
            if self.is_out(entry):
                assert places[id(entry)] not in held, entry
            else:
                assert places[id(entry)] in held or entry.results == [], entry
        return state

    def teardown(self) -> None:
        with closing(self.loop) if hasattr(self, "loop") else nullcontext():
            if hasattr(self, "rig"):  # a program may end before it has begun: when the data run out
                self.end()

    def end(self) -> None:
        try:
            if not self.failed:
                self.finish_everything()
        finally:
            self.failed = True
            for zombie in self.zombies:
                if zombie.over is not None and not zombie.over.done():
                    zombie.over.set_result(None)
            self.do(self.rig.operator.stop)

    def finish_everything(self) -> None:
        """Nothing is left behind once the way is open and every call has been answered."""
        if self.closed:
            self.close_or_open_the_way_downstream()
        for _ in range(len(self.entries) + 1):
            self.rest(True)
            for entry in self.answerable():
                assert entry.answer is not None
                entry.answer.set_result(self.results_of(entry))
            for zombie in self.zombies:
                assert zombie.over is not None
                if not zombie.over.done():
                    zombie.over.set_result(None)
        self.rest(True)
        assert self.failed or not self.inside
        left = [kept for kept in self.rig.operator.snapshot() if kept[0] != "reached"]
        assert self.failed or left == []


def results(values: list[Any]) -> list[int]:
    return [value for value in values if not isinstance(value, Control)]


def controls(values: list[Any]) -> list[Control]:
    return [value for value in values if isinstance(value, Control)]


def segments(values: list[Any]) -> list[list[int]]:
    """The results between watermarks."""
    found: list[list[int]] = [[]]
    for value in values:
        if isinstance(value, Control):
            found.append([])
        else:
            found[-1].append(value)
    return found


@pytest.mark.parametrize("order", list(OutputOrder), ids=lambda order: order.value)
def test_random_programs_do_what_the_model_says(order: OutputOrder) -> None:
    machine = type(f"{order.name}Machine", (AsyncWaitMachine,), {"order": order})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            phases=[Phase.generate, Phase.shrink],
        ),
    )
