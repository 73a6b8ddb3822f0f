"""
Window operators whose tables are cut and merged while they run, and that crash: the deltas of their cuts give
another one what it needs to go on as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.state import Cut, Delta, Kept, Table, ValueDescriptor, detached, plain_namespace
from asyncstream.windowing import (
    AfterWatermark,
    AggregateFunction,
    Aggregates,
    Collect,
    ContinuousEventTimeTrigger,
    Count,
    CountEvictor,
    CountTrigger,
    CumulativeWindows,
    DynamicSessionWindows,
    First,
    Last,
    Mean,
    ProcessWindowFunction,
    SessionWindows,
    SlidingWindows,
    Sum,
    TumblingWindows,
    WindowAssigner,
    WindowPlan,
    window_operator,
)
from tests.tiers import examples
from tests.windowing.harness import Harness, Step, ms

VALUE = itemgetter(1)
FREE = Aggregates(n=Count(), total=Sum(VALUE), mean=Mean(VALUE))
ORDERED = Aggregates(all=Collect(VALUE), first=First(VALUE), last=Last(VALUE))


class Numbered(ProcessWindowFunction[Any]):
    """Keeps state of the key."""

    def process(self, key: Any, contents: Any, ctx: Any, out: Any) -> None:
        firings = ctx.key_state(ValueDescriptor[int]("firings", default=0))
        firings.set((firings.get() or 0) + 1)
        out((key, tuple(ctx.window), contents, firings.get()))


def dynamic() -> WindowAssigner:
    return DynamicSessionWindows(lambda value: ms(1 + int(value[1]) % 7))


PLANS: dict[str, Any] = {
    "tumbling": lambda late: WindowPlan(TumblingWindows(ms(7)), None, None, late, FREE),
    "tumbling, one": lambda late: WindowPlan(TumblingWindows(ms(7)), None, None, late, Collect(VALUE)),
    "function": lambda late: WindowPlan(TumblingWindows(ms(7)), None, None, late, FREE, Numbered()),
    "sliding": lambda late: WindowPlan(SlidingWindows(ms(9), ms(4)), None, None, late, FREE),
    "sliding, one": lambda late: WindowPlan(SlidingWindows(ms(9), ms(4)), None, None, late, Sum(VALUE)),
    "in order": lambda late: WindowPlan(SlidingWindows(ms(9), ms(3)), None, None, late, ORDERED),
    "sparse": lambda late: WindowPlan(SlidingWindows(ms(3), ms(5)), None, None, late, ORDERED),
    "cumulative": lambda late: WindowPlan(CumulativeWindows(ms(12), ms(3)), None, None, late, FREE),
    "sessions": lambda late: WindowPlan(SessionWindows(ms(4)), None, None, late, ORDERED),
    "counted": lambda late: WindowPlan(TumblingWindows(ms(7)), CountTrigger(2), None, late, FREE),
    "counted beside the end": lambda late: WindowPlan(
        TumblingWindows(ms(7)), AfterWatermark(early=CountTrigger(2), late=CountTrigger(2)), None, late, FREE
    ),
    "early and late": lambda late: WindowPlan(
        SlidingWindows(ms(9), ms(4)), AfterWatermark(early=CountTrigger(2), late=CountTrigger(2)), None, late
    ),
    "late": lambda late: WindowPlan(
        CumulativeWindows(ms(12), ms(3)), AfterWatermark(late=CountTrigger(2)), None, late, FREE
    ),
    "ticks": lambda late: WindowPlan(
        SlidingWindows(ms(9), ms(3)), ContinuousEventTimeTrigger(ms(3)), None, late, FREE
    ),
    "ticks of windows apart": lambda late: WindowPlan(
        TumblingWindows(ms(9)), ContinuousEventTimeTrigger(ms(2)), None, late, FREE
    ),
    "evicted": lambda late: WindowPlan(SessionWindows(ms(4)), None, CountEvictor(2), late),
    "dynamic": lambda late: WindowPlan(dynamic(), None, None, late, ORDERED),
}


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """Elements about a rising watermark; cuts, their deltas written later, then merged; crashes."""
    program: list[Step] = []
    watermark = draw(st.integers(-10, 10))
    number = 0
    kinds = ["el"] * 7 + ["wm"] * 2 + ["cut"] * 2 + ["write", "merge", "merge all", "crash", "go on"]
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=50)):
        if kind == "el":
            number += 1
            value = draw(st.sampled_from([number] * 20 + [number / 10]))
            program.append(
                ("el", (draw(st.sampled_from("aabc")), value), watermark + draw(st.integers(-9, 12)))
            )
        elif kind == "wm":
            watermark += draw(st.integers(1, 9))
            program.append(("wm", watermark))
        else:
            program.append((kind,))
    return [*program, ("wm", MAX_TIMESTAMP)]


CUT_WITHIN_A_SLICE: list[Step] = [
    ("el", ("a", 1), 0),
    ("el", ("b", 2), 0),
    ("cut",),
    ("el", ("a", 3), 0),
    ("el", ("b", 4), 0),  # one key after another has its row there, but an older one
    ("wm", MAX_TIMESTAMP),
]


class Durable:
    """What checkpoints keep of an operator: tables with keys and values as they were saved, and cells."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.about: dict[str, Any] = {}

    def write(self, cut: Cut, about: dict[str, Any]) -> None:
        self.about = about
        for table, delta in cut.deltas.items():
            key_of = table.save_key
            rows = {
                plain_namespace(namespace): {key_of(key): detached(table.save(v)) for key, v in some.items()}
                for namespace, some in delta.rows.items()
            }
            gone = {plain_namespace(name): {key_of(key) for key in keys} for name, keys in delta.gone.items()}
            kept = self.tables.setdefault(table.name, Table(table.name, compound=table.compound))
            kept.apply(Delta(rows, gone, {plain_namespace(namespace) for namespace in delta.dropped}))

    def kept(self) -> Kept:
        """A copy."""
        tables = {}
        for name, table in self.tables.items():
            tables[name] = copied = Table(name, compound=table.compound)
            for namespace in table.namespaces():
                copied.put_old([(namespace, detached(table.whole(namespace)).items())])
        return Kept(tables, detached(self.about))


class Run(Harness):
    """Runs a program; what comes after a crash follows on the last cut that was written."""

    def perform(self, program: list[Step]) -> list[Any]:
        self.durable = Durable()
        self.written: tuple[int, int, int | None] | None = None  # steps, records, watermark
        self.cut: tuple[Cut, dict[str, Any], tuple[int, int, int | None]] | None = None
        self.merging: Iterator[None] | None = None
        self.reached: int | None = None
        for at, (kind, *arguments) in enumerate(program):
            if kind == "cut" and self.cut is None and self.merging is None:
                cut = self.operator.tables.cut()
                self.cut = cut, detached(cut.about), (at, len(self.records), self.reached)
            elif kind == "write" and self.cut is not None:
                cut, about, self.written = self.cut
                self.durable.write(cut, about)
                self.cut, self.merging = None, self.operator.tables.merging()
            elif kind == "merge" and self.merging is not None:
                if next(self.merging, "done") == "done":
                    self.merging = None
            elif kind == "merge all" and self.merging is not None:
                for _ in self.merging:
                    pass
                self.merging = None
            elif kind == "crash" and self.written is not None:
                self.crash(program[: at + 1])
            elif kind == "go on" and self.cut is None and self.merging is None and not self._on_disk:
                self.go_on(at)
            else:
                self.push(kind, arguments)
        return self.records

    def push(self, kind: str, arguments: list[Any]) -> None:
        if kind == "el":
            self.element(*arguments)
        elif kind == "wm":
            self.reached = arguments[0]
            self.watermark(self.reached)

    def go_on(self, at: int) -> None:
        """Another operator goes on with the merged tables, and with what follows from them."""
        before = self.operator
        cut = before.tables.cut()
        about = detached(cut.about)
        self.durable.write(cut, about)
        self.written = at, len(self.records), self.reached
        before.tables.merge()
        before.close()
        self.operator = self._opened()
        self.operator.tables.go_on(before.tables, detached(about["cells"]))
        if self.reached is not None:
            self.operator.restore_watermark(self.reached)

    def crash(self, program: list[Step]) -> None:
        assert self.written is not None
        start, records, self.reached = self.written
        self.operator.close()
        self.cut = self.merging = None
        del self.records[records:]
        self.operator = self._opened()
        for _ in self.operator.tables.take_over(self.durable.kept()):
            pass
        self.operator.resume()
        if self.reached is not None:
            self.operator.restore_watermark(self.reached)
        for kind, *arguments in program[start:]:
            self.push(kind, arguments)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@settings(max_examples=examples(30), deadline=None)
@given(program=programs(), lateness=st.sampled_from([0, 3, 8]))
@example(program=CUT_WITHIN_A_SLICE, lateness=0)
def test_cuts_and_crashes_leave_results_as_they_are(
    name: str, on_disk: bool, program: list[Step], lateness: int
) -> None:
    def run(*, on_disk: bool) -> Run:
        plan = PLANS[name](lateness)
        return Run(lambda: window_operator(itemgetter(0), plan), on_disk=on_disk)

    calm, eventful = run(on_disk=False), run(on_disk=on_disk)
    expected = calm.perform([step for step in program if step[0] in ("el", "wm")])
    assert eventful.perform(program) == expected
    assert eventful.operator.metrics() == calm.operator.metrics()
    assert not any(len(table) for table in eventful.operator.tables if not table.name.startswith("key/"))


class Sealed:
    """Refuses to be copied, as objects of many libraries in C do."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("cannot pickle a Sealed")


class Seals(AggregateFunction[Any, Any]):
    """Collects in what only `save` can look into."""

    def create(self) -> Sealed:
        return Sealed([])

    def add(self, accumulator: Sealed, value: Any) -> Sealed:
        accumulator.values.append(value)
        return accumulator

    def merge(self, accumulator: Sealed, other: Sealed) -> Sealed:
        accumulator.values += other.values
        return accumulator

    def result(self, accumulator: Sealed) -> list[Any]:
        return sorted(accumulator.values)

    def save(self, accumulator: Sealed) -> list[Any]:
        return list(accumulator.values)

    def load(self, kept: list[Any]) -> Sealed:
        return Sealed(list(kept))


@pytest.mark.parametrize("aggregate", [Seals(), Aggregates(all=Seals(), n=Count())], ids=["one", "named"])
@pytest.mark.parametrize(
    "assigner",
    [
        TumblingWindows(ms(7)),
        SlidingWindows(ms(9), ms(4)),
        CumulativeWindows(ms(12), ms(3)),
        SessionWindows(ms(4)),
        dynamic(),
    ],
    ids=lambda assigner: type(assigner).__name__,
)
@settings(max_examples=examples(10), deadline=None)
@given(program=programs())
@example(program=CUT_WITHIN_A_SLICE)
def test_accumulators_that_refuse_to_be_copied_are_copied_by_what_is_kept_of_them(
    assigner: WindowAssigner, aggregate: Any, program: list[Step]
) -> None:
    def run(program: list[Step]) -> list[Any]:
        plan = WindowPlan(assigner, aggregate=aggregate)
        return Run(lambda: window_operator(itemgetter(0), plan)).perform(program)

    assert run(program) == run([step for step in program if step[0] in ("el", "wm")])


@pytest.mark.parametrize("name", PLANS)
def test_a_snapshot_may_lack_tables_without_rows(name: str) -> None:
    run = Harness(lambda: window_operator(itemgetter(0), PLANS[name](0)))
    run.operator.restore({**run.operator.snapshot(), "tables": {}})
    assert run.panes(PLANS[name](0)) == []
