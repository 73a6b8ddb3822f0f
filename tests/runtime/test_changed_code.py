"""A pipeline whose code has changed takes up what is its own, by name, and refuses the rest."""

from __future__ import annotations

import asyncio
import math
import operator
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    CheckpointError,
    Checkpoints,
    Count,
    JsonLinesSink,
    JsonLinesSource,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MemoryStore,
    NoWatermarks,
    Pipeline,
    PipelineError,
    SessionWindows,
    SlidingWindows,
    Source,
    SourceBatch,
    SourceError,
    SqliteSink,
    Stream,
    Sum,
    TimeToLive,
    TumblingWindows,
)
from asyncstream.state import ListDescriptor, ValueDescriptor
from asyncstream.windowing import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    CountTrigger,
    CumulativeWindows,
    DynamicSessionWindows,
    First,
    Last,
    Max,
    Mean,
    Min,
    Reduce,
    Trigger,
)
from tests.naming import shown
from tests.runtime.parts import sleeping
from tests.state.asking import Opens

EVENTS = [{"k": "ab"[n % 2], "t": n * 100, "x": 1, "y": n} for n in range(20)]

Step = Callable[[Stream[Any]], Stream[Any]]


def windows(assigner: Any, late: float = 0, trigger: Any = None, /, **aggregates: Any) -> Step:
    def add(stream: Stream[Any]) -> Stream[Any]:
        windowed = stream.key_by(lambda e: e["k"]).window(assigner).allowed_lateness(late)
        if trigger is not None:
            windowed = windowed.trigger(trigger)
        if "single" in aggregates:
            return windowed.aggregate(aggregates["single"], name="w")
        return windowed.aggregate(name="w", **aggregates)

    return add


def build(step: Step, out: list[Any]) -> Pipeline:
    pipeline = Pipeline()
    stream = pipeline.submissions(name="in").event_time(lambda e: e["t"], NoWatermarks(), name="t")
    step(stream).to(out, name="out")
    return pipeline


async def two_runs(first: Step, second: Step, *, snapshot: bool = False, **settings: Any) -> list[Any]:
    """What comes out if `first` is stopped in the middle, and `second` goes on."""
    store, out = MemoryStore(), list[Any]()
    start: dict[str, Any] = {} if snapshot else {"checkpoints": Checkpoints(store=store)}
    async with build(first, out).start(**start) as job:
        for event in EVENTS[:11]:
            await job.submit(event)
        await asyncio.sleep(0.01)  # of virtual time, in which they reach their windows
        kept = await job.stop()
    start = {"snapshot": kept} if snapshot else {"checkpoints": Checkpoints(store=store, **settings)}
    async with build(second, out).start(**start) as job:
        for event in EVENTS[11:]:
            await job.submit(event)
        await job.drain()
    return out


async def one_run(step: Step) -> list[Any]:
    out: list[Any] = []
    async with build(step, out).start() as job:
        for event in EVENTS:
            await job.submit(event)
        await job.drain()
    return out


KINDS = [
    TumblingWindows(2),
    SlidingWindows(2, 1),
    SlidingWindows(3, 2),
    CumulativeWindows(2, 1),
    SessionWindows(1),
]
SAME = {"n": Count(), "total": Sum("y"), "low": Min("y"), "high": Max("y")}
SWAPPED = {name: SAME[name] for name in reversed(SAME)}


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("assigner", KINDS, ids=shown)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_aggregates_are_found_by_name(assigner: Any, snapshot: bool) -> None:
    first, second = windows(assigner, **SAME), windows(assigner, **SWAPPED)
    assert await two_runs(first, second, snapshot=snapshot) == await one_run(second)


@pytest.mark.parametrize("assigner", KINDS, ids=shown)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_an_aggregate_that_is_gone_takes_nothing_along(assigner: Any) -> None:
    second = windows(assigner, total=Sum("y"), high=Max("y"))
    assert await two_runs(windows(assigner, **SAME), second) == await one_run(second)


@pytest.mark.parametrize("assigner", [TumblingWindows(2), SessionWindows(1)], ids=shown)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_new_aggregate_starts_from_nothing(assigner: Any, caplog: pytest.LogCaptureFixture) -> None:
    second = windows(assigner, first=First("y"), mean=Mean("y"), **SAME)
    results = {result.key: result.value for result in await two_runs(windows(assigner, **SAME), second)}
    assert results["a"] == {"first": 12, "mean": 15.0, "n": 10, "total": 90, "low": 0, "high": 18}
    assert "'first', 'mean' are new and start from nothing" in caplog.text


@pytest.mark.parametrize("assigner", [*KINDS, DynamicSessionWindows(lambda event: 1)], ids=shown)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_new_reduction_starts_from_nothing(assigner: Any) -> None:
    first, second = windows(assigner, n=Count()), windows(assigner, best=Reduce(greater), n=Count())
    found = await two_runs(first, second)
    assert [result.value["n"] for result in found] == [result.value["n"] for result in await one_run(second)]
    held = [result.value["best"]["y"] for result in found if result.value["best"] is not None]
    assert held
    assert min(held) >= 11  # what came before is not in it


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_reduction_that_has_seen_nothing_is_kept() -> None:
    store, out = MemoryStore(), list[Any]()
    first, second = (
        windows(TumblingWindows(2), **given)
        for given in ({"n": Count()}, {"best": Reduce(greater), "n": Count()})
    )
    async with build(first, out).start(checkpoints=Checkpoints(store=store)) as job:
        await job.submit(EVENTS[0])
        await asyncio.sleep(0.01)
        await job.stop()
    for _ in range(2):
        async with build(second, out).start(checkpoints=Checkpoints(store=store)) as job:
            await job.stop()
    async with build(second, out).start(checkpoints=Checkpoints(store=store)) as job:
        await job.drain()
    assert [result.value for result in out] == [{"best": None, "n": 1}]


def greater(one: Any, other: Any) -> Any:
    return max(one, other, key=lambda event: event["y"])


class Weighted(AggregateFunction[Any, Any]):
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def create(self) -> Any:
        return 0

    def add(self, accumulator: Any, value: Any) -> Any:
        return accumulator + self.factor * value["y"]

    def merge(self, accumulator: Any, other: Any) -> Any:
        return accumulator + other

    def result(self, accumulator: Any) -> Any:
        return accumulator


class Always(Trigger):
    pass


BASE = windows(TumblingWindows(2), n=Count(), total=Sum("x"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (BASE, windows(TumblingWindows(3), n=Count(), total=Sum("x"))),
        (BASE, windows(TumblingWindows(2, offset=1), n=Count(), total=Sum("x"))),
        (BASE, windows(TumblingWindows(2, time="processing"), n=Count(), total=Sum("x"))),
        (BASE, windows(SlidingWindows(2, 1), n=Count(), total=Sum("x"))),
        (BASE, windows(SessionWindows(2), n=Count(), total=Sum("x"))),
        (BASE, windows(CumulativeWindows(2, 1), n=Count(), total=Sum("x"))),
        (BASE, windows(TumblingWindows(2), n=Count(), total=Sum("y"))),
        (BASE, windows(TumblingWindows(2), n=Count(), total=Min("x"))),
        (BASE, windows(TumblingWindows(2), n=Count(), total=Sum(lambda e: e["x"]))),
        (BASE, windows(TumblingWindows(2), n=Sum("x"), total=Count())),
        (BASE, windows(TumblingWindows(2), n=Count("x"), total=Sum("x"))),
        (BASE, windows(TumblingWindows(2), single=Count())),
        (BASE, windows(TumblingWindows(2), 0, CountTrigger(3), n=Count(), total=Sum("x"))),
        (BASE, windows(TumblingWindows(2), 0, Always(), n=Count(), total=Sum("x"))),
        (windows(TumblingWindows(2), single=Count()), windows(TumblingWindows(2), single=Last("x"))),
        (windows(TumblingWindows(2), n=Weighted(1)), windows(TumblingWindows(2), n=Weighted(2))),
        (windows(SlidingWindows(2, 1), n=Count()), windows(SlidingWindows(3, 1), n=Count())),
        (windows(SessionWindows(1), n=Count()), windows(SessionWindows(2), n=Count())),
        (
            lambda s: s.key_by(lambda e: e["k"]).count_window(3).aggregate(n=Count(), name="w"),
            lambda s: s.key_by(lambda e: e["k"]).count_window(4).aggregate(n=Count(), name="w"),
        ),
        (
            lambda s: s.key_by(lambda e: e["k"]).policy_window(length=3, name="w"),
            lambda s: s.key_by(lambda e: e["k"]).policy_window(length=4, name="w"),
        ),
        (
            lambda s: s.key_by(lambda e: e["k"]).window(TumblingWindows(2)).collect(name="w"),
            lambda s: s.key_by(lambda e: e["k"]).window(TumblingWindows(3)).collect(name="w"),
        ),
    ],
)
@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_the_state_of_something_else_is_refused(first: Step, second: Step, snapshot: bool) -> None:
    with pytest.raises(CheckpointError, match=r"'w' has changed .* was .* and is "):
        await two_runs(first, second, snapshot=snapshot)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_the_refusal_names_the_ways_out() -> None:
    other = windows(TumblingWindows(3), n=Count(), total=Sum("x"))
    with pytest.raises(CheckpointError, match=r"migrate=.*allow_dropped=.*renamed="):
        await two_runs(BASE, other)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_what_cannot_be_taken_up_can_be_made_to_fit() -> None:
    def coarser(state: Any) -> Any:
        ((start, _), rows), *rest = state["tables"]["slices"]
        assert (start, rest) == (0, [])
        return {**state, "tables": {**state["tables"], "slices": [[(0, 4000), rows]]}}

    second = windows(TumblingWindows(4), n=Count(), total=Sum("x"))
    assert await two_runs(BASE, second, migrate={"w": coarser}) == await one_run(second)
    left = await two_runs(BASE, second, migrate={"w": lambda state: None})
    assert [result.value["n"] for result in left] == [5, 4]


class Sums(KeyedProcessFunction[Any, Any]):
    def open(self, ctx: Any) -> None:
        self.total = ctx.state(ValueDescriptor[int]("total"))

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        self.total.set(self.total.get(0) + value)
        out(self.total.get())


def _in_cents(state: Any) -> Any:
    ((_, rows),) = state["tables"]["state/total"]
    return {**state, "tables": {"state/total": [[None, [[key, value * 100] for key, value in rows]]]}}


def sums(*names: str) -> Callable[[list[Any]], Pipeline]:
    """Steps of these names; the first adds up what it is given, the second that times ten, and so on."""

    def make(out: list[Any]) -> Pipeline:
        pipeline = Pipeline("sums")
        numbers = pipeline.submissions(name="in")
        for power, name in enumerate(names):
            scaled = numbers.map(partial(operator.mul, 10**power))
            scaled.key_by(lambda _: None).process(Sums(), name=name).to(out, name=f"out {power}")
        return pipeline

    return make


async def starts(*given: tuple[Callable[[list[Any]], Pipeline], dict[str, Any]]) -> list[list[Any]]:
    """What comes out of each of these, given 1, which goes on from the one before with its settings."""
    store, outs = MemoryStore(), list[list[Any]]()
    for make, settings in given:
        outs.append([])
        async with make(outs[-1]).start(checkpoints=Checkpoints(store=store, **settings)) as job:
            await job.submit(1)
            await job.drain()
    return outs


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_migration_that_stays_in_the_settings_is_not_applied_to_what_it_has_made() -> None:
    one, cents = sums("w"), {"migrate": {"w": _in_cents}}
    assert await starts((one, {}), (one, cents), (one, cents), (one, cents)) == [[1], [101], [102], [103]]
    other = {"migrate": {"w": lambda state: _in_cents(state)}}
    assert await starts((one, {}), (one, cents), (one, other)) == [[1], [101], [10101]]
    assert await starts((one, cents), (one, {}), (one, cents)) == [[1], [2], [201]]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_migration_is_applied_again_to_what_does_not_fit() -> None:
    store, outcomes = MemoryStore(), list[str]()
    for seconds in (2, 3, 3, 4):
        settings = Checkpoints(store=store, migrate={"w": lambda state: None})
        pipeline = build(windows(TumblingWindows(seconds), n=Count()), [])
        report = await pipeline.dry_run(settings)
        outcomes += [step.outcome for step in report.steps if step.step == "w"]
        async with pipeline.start(checkpoints=settings) as job:
            await job.submit(EVENTS[0])
            await job.stop()
    assert outcomes == ["from nothing", "from nothing", "kept", "from nothing"]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_new_names_that_stay_in_the_settings_are_not_given_again() -> None:
    swapped = sums("b", "a"), {"renamed": {"a": "b", "b": "a"}}
    assert await starts((sums("a", "b"), {}), swapped, swapped) == [[1, 10], [2, 20], [3, 30]]
    taken = sums("b", "a"), {"renamed": {"a": "b"}}
    assert await starts((sums("a"), {}), taken, taken) == [[1], [2, 10], [3, 20]]
    back = sums("a"), {"renamed": {"b": "a"}}
    again = sums("b"), {"renamed": {"a": "b"}}
    assert await starts((sums("a"), {}), again, back, again) == [[1], [2], [3], [4]]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_step_may_take_the_name_of_one_that_is_gone() -> None:
    both, one = sums("a", "b"), sums("b")
    renamed: dict[str, Any] = {"renamed": {"a": "b", "out 0": "out 0"}, "allow_dropped": ["out 1"]}
    with pytest.raises(CheckpointError, match=r"'b' under two names; .* allow_dropped=\['b'\]"):
        await starts((both, {}), (one, renamed))
    dropped = {**renamed, "allow_dropped": ["out 1", "b"]}
    outs = await starts((both, {}), (both, {}), (one, dropped), (one, dropped))
    assert outs == [[1, 10], [2, 20], [3], [4]]
    store = MemoryStore()
    async with both([]).start(checkpoints=Checkpoints(store=store)) as job:
        await job.submit(1)
    report = await one([]).dry_run(Checkpoints(store=store, **dropped))
    told = {step.step: (step.outcome, step.detail) for step in report.steps}
    assert told["b"] == ("kept", "what had this name before is dropped, by allow_dropped=")


class Ticks(KeyedProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        ctx.register_event_timer(9000)

    def on_timer(self, timestamp: int, ctx: Any, out: Any) -> None: ...


def _timers_by_text(state: Any) -> Any:
    kept = [[str(timestamp), rows] for timestamp, rows in state["tables"]["timers/event"]]
    return {**state, "tables": {**state["tables"], "timers/event": kept}}


@pytest.mark.parametrize(("key", "why"), [("same", "two rows of key"), (math.nan, "must equal itself")])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_migration_after_which_rows_would_not_be_found_is_refused(key: Any, why: str) -> None:
    def renamed(state: Any) -> Any:
        kept = [[window, [[key, value] for _, value in rows]] for window, rows in state["tables"]["slices"]]
        return {**state, "tables": {**state["tables"], "slices": kept}}

    with pytest.raises(CheckpointError, match=rf"migrate\['w'\] failed: ValueError: .*{why}"):
        await two_runs(BASE, BASE, migrate={"w": renamed})


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_migration_that_fails_or_has_no_step_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"migrate\['w'\] failed: ZeroDivisionError"):
        await two_runs(BASE, BASE, migrate={"w": lambda state: 1 // 0})
    ticks: Step = lambda s: s.key_by(lambda e: e["k"]).process(Ticks(), name="w")  # noqa: E731
    with pytest.raises(CheckpointError, match=r"step 'w' cannot .* a timer needs an int .*'9000'"):
        await two_runs(ticks, ticks, migrate={"w": _timers_by_text})
    with pytest.raises(PipelineError, match="no step 'v'"):
        await two_runs(BASE, BASE, migrate={"v": lambda state: state})


@pytest.mark.parametrize("after", [{"tables": {}, "rules": {}, "compound": []}, {}, [], 0, "state"])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_migration_after_which_there_is_no_state_is_refused_before_anything_is_changed(
    after: Any,
) -> None:
    for build in (BASE, lambda s: s.key_by(lambda e: e["k"]).process(Ticks(), name="w")):
        with pytest.raises(CheckpointError, match=r"migrate\['w'\] failed: ValueError: expected a dict with"):
            await two_runs(build, build, migrate={"w": lambda state: after})


async def _never(event: Any) -> Any:
    await asyncio.sleep(3600)


def _with(path: tuple[Any, ...], value: Any) -> Callable[[Any], Any]:
    """A migration that puts a value in place of what is at a path in the state."""

    def replaced(state: Any, path: tuple[Any, ...] = path) -> Any:
        if not path:
            return value
        made = dict(state) if isinstance(state, dict) else list(state)
        made[path[0]] = replaced(state[path[0]], path[1:])
        return tuple(made) if isinstance(state, tuple) else made

    return replaced


CALLS: Step = lambda s: s.async_map(_never, name="w")  # noqa: E731
TICKS: Step = lambda s: s.key_by(lambda e: e["k"]).process(Ticks(), name="w")  # noqa: E731
JOINED: Step = lambda s: s.union(s.filter(lambda e: True), name="w")  # noqa: E731
OVERLAPPING = windows(SlidingWindows(2, 1), n=Count())
QUIET: Step = lambda s: s.advance_when_quiet(60, name="w")  # noqa: E731


@pytest.mark.parametrize(
    ("step", "name", "path", "value", "why"),
    [
        (CALLS, "w", (), "nonsense", "expected a list of elements, got 'nonsense'"),
        (CALLS, "w", (), 3, "expected a list of elements"),
        (CALLS, "w", (0,), {"k": "a"}, r"expected elements as \['call', value, timestamp\]"),
        (CALLS, "w", (0, 0), "cal", r"expected elements as \['call', value, timestamp\]"),
        (CALLS, "w", (0, 2), "now", r"expected elements as \['call', value, timestamp\]"),
        (CALLS, "w", (), [["reached", "now"]], r"expected elements as \['call', value, timestamp\]"),
        (CALLS, "t", (1,), "now", "expected a time, an int"),
        (CALLS, "t", (0,), None, "expected a time, an int"),
        (CALLS, "t", (), "nonsense", "step 't' cannot go on"),
        (JOINED, "w", ("cells", "inputs", 0), "now", "expected a time, an int"),
        (JOINED, "w", ("cells", "inputs", 1, 0, 0), "now", "expected a time, an int"),
        (QUIET, "w", (), "now", "expected a time, an int"),
        (TICKS, "w", ("tables", "timers/event", 0, 1, 0, 0), 1, "has keys that are tuples"),
        (BASE, "w", ("cells",), {"n": 1}, "it holds n"),
        (BASE, "w", ("tables", "slices", 0, 0), (1, 2), r"\(1, 2\) is no slice"),
        (
            OVERLAPPING,
            "w",
            ("tables", "slices", 0, 1, 0, 1, 0, 0),
            None,
            "migrate= has made the state of 'w'",
        ),
    ],
)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_what_is_no_state_of_the_step_is_refused_with_what_was_expected(
    step: Step, name: str, path: tuple[Any, ...], value: Any, why: str
) -> None:
    with pytest.raises(CheckpointError, match=why):
        await two_runs(step, step, migrate={name: _with(path, value)})


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_migration_of_what_waits_to_be_read_gives_a_list() -> None:
    with pytest.raises(
        SourceError, match=r"'in': .*expected a list of the elements that wait, got 'nonsense'"
    ):
        await two_runs(CALLS, CALLS, migrate={"in": lambda state: "nonsense"})


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_migration_of_a_step_that_remembers_nothing_is_refused() -> None:
    plain: Step = lambda s: s.map(lambda e: e, name="w")  # noqa: E731
    with pytest.raises(PipelineError, match="migrate: step 'w' remembers nothing"):
        await two_runs(plain, plain, migrate={"w": lambda state: state})


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_migration_that_returns_nothing_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    def changed_in_place(state: Any) -> None:
        state["tables"]["slices"].clear()

    await two_runs(BASE, BASE, migrate={"w": changed_in_place})
    assert "step 'w' starts from nothing: migrate['w'] has returned None" in caplog.text


@pytest.mark.parametrize(("before", "after"), [(0, 5), (5, 0), (5, 1)])
@pytest.mark.parametrize("trigger", [None, ContinuousEventTimeTrigger(1)])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_allowed_lateness_may_change_and_windows_still_go(
    before: float, after: float, trigger: Any
) -> None:
    first, second = (windows(TumblingWindows(2), late, trigger, n=Count()) for late in (before, after))
    store, out = MemoryStore(), list[Any]()

    def pipeline(step: Step) -> Pipeline:
        made = Pipeline()
        stream = made.submissions(name="in")
        timed = stream.event_time(lambda e: e["t"], BoundedOutOfOrderness(0.001), name="t")
        step(timed).to(out, name="out")
        return made

    async with pipeline(first).start(checkpoints=Checkpoints(store=store)) as job:
        await job.submit({"k": "a", "t": 1900})
        await job.submit({"k": "b", "t": 2100})
        await asyncio.sleep(0.01)
        await job.stop()
    async with pipeline(second).start(checkpoints=Checkpoints(store=store)) as job:
        await job.submit({"k": "a", "t": 20_000})
        await asyncio.sleep(0.01)
        assert job.metrics()["w"]["windows_open"] == 1
        await job.drain()
    ends = {(result.key, result.end_ms): result.value["n"] for result in out}
    assert ends == {("a", 2000): 1, ("b", 4000): 1, ("a", 22_000): 1}


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_triggers_of_the_same_kinds_may_have_other_figures() -> None:
    first, second = (
        windows(TumblingWindows(2), 0, ContinuousEventTimeTrigger(tick), n=Count()) for tick in (2, 1)
    )
    assert (await two_runs(first, second))[-1] == (await one_run(second))[-1]


class Remembers(KeyedProcessFunction[Any, Any]):
    def __init__(self, state: Any) -> None:
        self.kept = state

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        ctx.state(self.kept)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_state_of_another_kind_is_refused_before_anything_runs() -> None:
    first, second = (
        lambda s, state=state: s.key_by(lambda e: e["k"]).process(Remembers(state), name="p")
        for state in (ValueDescriptor[int]("s"), ListDescriptor[int]("s"))
    )
    with pytest.raises(CheckpointError, match=r"s was ValueDescriptor\(\) and is ListDescriptor\(\)"):
        await two_runs(first, second)
    assert await two_runs(first, first) == []


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_state_of_another_kind_that_open_asks_for_is_refused_with_the_step(snapshot: bool) -> None:
    first, second = (
        lambda s, make=make: s.key_by(lambda e: e["k"]).process(Opens(make), name="p")
        for make in (lambda: ValueDescriptor[int]("s"), lambda: ListDescriptor[int]("s"))
    )
    with pytest.raises(CheckpointError, match="step 'p': state 's' is value state and cannot be read"):
        await two_runs(first, second, snapshot=snapshot)


class Counts(KeyedProcessFunction[Any, Any]):
    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, ctx: Any) -> None:
        self.count = ctx.state(ValueDescriptor[int](self.name, ttl=TimeToLive(60)))

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        self.count.set(self.count.get(0) + 1)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_state_that_has_another_name_now_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    first, second = (
        lambda s, name=name: s.key_by(lambda e: e["k"]).process(Counts(name), name="p")
        for name in ("count", "counted")
    )
    await two_runs(first, first)
    assert "has not asked for" not in caplog.text
    await two_runs(first, second)
    assert "step 'p' goes on with state that its function has not asked for in open: 'count';" in caplog.text


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_state_that_is_not_wanted_any_more_is_let_go_by_migrate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = (
        lambda s, name=name: s.key_by(lambda e: e["k"]).process(Counts(name), name="p")
        for name in ("count", "counted")
    )

    def without_count(state: Any) -> Any:
        state["tables"] = {name: rows for name, rows in state["tables"].items() if "count" not in name}
        return state

    assert await two_runs(first, second, migrate={"p": without_count}) == []
    assert "has not asked for" not in caplog.text


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_the_inputs_of_a_union_find_their_watermarks_by_name() -> None:
    def pipeline(names: str, out: list[Any]) -> Pipeline:
        made = Pipeline()
        streams = [
            made.submissions(name=name).event_time(
                lambda e: e["t"], BoundedOutOfOrderness(0.001), name=f"t{name}"
            )
            for name in names
        ]
        both = streams[0].union(*streams[1:], name="u").key_by(lambda e: e["k"])
        both.window(TumblingWindows(1)).aggregate(n=Count(), name="w").to(out, name="out")
        return made

    store, out = MemoryStore(), list[Any]()
    async with pipeline("ab", out).start(checkpoints=Checkpoints(store=store)) as job:
        await job.submit({"k": "x", "t": 5000}, to="a")
        await job.submit({"k": "x", "t": 500}, to="b")
        await asyncio.sleep(0.01)
        await job.stop()
    async with pipeline("cba", out).start(checkpoints=Checkpoints(store=store)) as job:
        await job.submit({"k": "x", "t": 600}, to="b")  # late, had b the watermark of a
        await job.submit({"k": "x", "t": 700}, to="c")
        await job.drain()
    assert [(result.start_ms, result.value["n"]) for result in out] == [(0, 3), (5000, 1)]


async def test_another_source_or_sink_is_refused(tmp_path: Any) -> None:
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n')

    def pipeline(source: Any, sink: Any) -> Pipeline:
        made = Pipeline()
        made.source(source, name="in").to(sink, name="out")
        return made

    def lines() -> JsonLinesSource[Any]:
        return JsonLinesSource(tmp_path / "in.jsonl")

    def file() -> JsonLinesSink:
        return JsonLinesSink(tmp_path / "out.jsonl")

    table = SqliteSink(tmp_path / "out.db", "t", columns=["a"])
    settings = Checkpoints(store=MemoryStore())
    await pipeline(lines(), file()).run(checkpoints=settings)
    with pytest.raises(CheckpointError, match=r"'in' .* source was 'JsonLinesSource' and is 'Items'"):
        await pipeline([{"a": 1}], file()).run(checkpoints=settings)
    with pytest.raises(CheckpointError, match=r"'out' .* sink was 'JsonLinesSink' and is 'SqliteSink'"):
        await pipeline(lines(), table).run(checkpoints=settings)
    plain = list[Any]()
    for migrate in ({}, {"out": dict}):  # which makes no state that a sink without epochs could use
        other = replace(settings, migrate=migrate)
        with pytest.raises(CheckpointError, match=r"'out' was a transactional sink, and .* allow_dropped$"):
            await pipeline(lines(), plain).run(checkpoints=other)


@pytest.mark.usefixtures("virtual_time")
async def test_a_sink_that_has_been_added_starts_again_after_a_crash_before_the_next_checkpoint(
    tmp_path: Path,
) -> None:
    store = MemoryStore()

    async def life(sinks: str, *, crashes: bool = False) -> None:
        pipeline = Pipeline()
        source = pipeline.source(list(range(20)), name="in")
        numbers = source.async_map(sleeping(0.01), concurrency=1, name="call")
        for name in sinks:
            numbers.to(JsonLinesSink(tmp_path / name), name=name)
        with pytest.raises(RuntimeError) if crashes else nullcontext():
            async with pipeline.start(checkpoints=Checkpoints(store=store, every=3600)) as job:
                if crashes:
                    await asyncio.sleep(0.1)  # of virtual time
                    raise RuntimeError
                await job.wait()

    def written(name: str) -> list[str]:
        path = tmp_path / name
        return path.read_text().splitlines() if path.exists() else []

    await life("a", crashes=True)
    for sinks in ("ab", "abc"):
        await life(sinks, crashes=True)
        assert written(sinks[-1])
    await life("abc")
    for name in "abc":
        assert written(name) == [str(number) for number in range(20)]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_source_that_has_been_added_goes_on_where_it_first_began() -> None:
    newest, out = 5, list[int]()

    class FromTheLatest(Source[int]):
        """What has come since it was opened for the first time."""

        async def open(self) -> None:
            self.at = newest

        async def read(self) -> SourceBatch[int] | None:
            values = list(range(self.at, newest))
            self.at = newest
            return SourceBatch(values) if values else None

        def position(self) -> int:
            return self.at

        async def seek(self, position: int) -> None:
            self.at = position

    def build(names: str) -> Pipeline:
        pipeline = Pipeline()
        for name in names:
            pipeline.source(FromTheLatest(), name=name).to(out, name=f"from {name}")
        return pipeline

    settings = Checkpoints(store=MemoryStore(), every=3600)
    await build("a").run(checkpoints=settings)
    with pytest.raises(RuntimeError):
        async with build("ab").start(checkpoints=settings):
            raise RuntimeError
    newest = 7
    await build("ab").run(checkpoints=settings)
    assert out == [5, 6, 5, 6]


BY_FIELD: dict[str, Callable[[str], Step]] = {
    "window": lambda name: lambda s: s.key_by(name).window(TumblingWindows(2)).aggregate(name="w", n=Count()),
    "top": lambda name: lambda s: s.key_by("k").top(2, by=name, name="w"),
    "min_by": lambda name: lambda s: s.key_by("k").min_by(name, name="w"),
    "deduplicate": lambda name: lambda s: s.key_by((name, "k")).deduplicate(name="w"),
    "join": lambda name: lambda s: s.key_by("k").join(s.key_by(name)).within(0, 1, name="w"),
}


@pytest.mark.parametrize("step", BY_FIELD)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_another_field_by_its_name_is_refused(step: str) -> None:
    """What is remembered of one field's values would be mixed with those of another."""
    by = BY_FIELD[step]
    with pytest.raises(CheckpointError, match=r"step 'w' has changed .* was .*'x'.* and is .*'y'"):
        await two_runs(by("x"), by("y"))
    assert await two_runs(by("x"), by("x")) == await one_run(by("x"))


class Pairing(KeyedCoProcessFunction[Any, Any, Any]):
    count = ValueDescriptor[int]("count")

    def open(self, ctx: Any) -> None:
        self.counted = ctx.state(self.count)

    def process_left(self, value: Any, ctx: Any, out: Any) -> None:
        self.counted.set((self.counted.get() or 0) + 1)

    def process_right(self, value: Any, ctx: Any, out: Any) -> None:
        out(self.counted.get())


def _kept_apart(stream: Stream[Any]) -> Any:
    return stream.key_by(lambda e: e["k"])


TOGETHER: dict[str, tuple[Step, Step]] = {
    "windows": (
        lambda s: _kept_apart(s).window(TumblingWindows(2)).aggregate(name="w", n=Count()),
        lambda s: s.window_all(TumblingWindows(2)).aggregate(name="w", n=Count()),
    ),
    "policy windows": (
        lambda s: _kept_apart(s).policy_window(length=3, name="w"),
        lambda s: s.policy_window(length=3, name="w"),
    ),
    "connected": (
        lambda s: _kept_apart(s).connect(_kept_apart(s)).process(Pairing(), name="w"),
        lambda s: s.connect(s).process(Pairing(), name="w"),
    ),
}


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("step", TOGETHER)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_step_that_has_got_keys_or_lost_them_is_refused(
    step: str, backwards: bool, snapshot: bool
) -> None:
    first, second = reversed(TOGETHER[step]) if backwards else TOGETHER[step]
    with pytest.raises(CheckpointError, match=r"'w' has changed .*grouping was '.*' and is '.*'"):
        await two_runs(first, second, snapshot=snapshot)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_field_by_a_function_is_not_compared() -> None:
    def step(key: Any) -> Step:
        return lambda s: s.key_by(key).window(TumblingWindows(2)).aggregate(name="w", n=Count())

    for first, second in (("k", lambda e: e["k"]), (lambda e: e["k"], "k")):
        assert await two_runs(step(first), step(second)) == await one_run(step("k"))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_key_by_which_calls_are_kept_in_order_may_be_another() -> None:
    async def same(event: Any) -> Any:
        return event

    def step(key: str) -> Step:
        return lambda s: s.key_by(key).async_map(same, order="per_key", name="w")

    assert sorted(e["y"] for e in await two_runs(step("k"), step("x"))) == list(range(20))
