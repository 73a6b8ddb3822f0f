"""What Spark calls in a worker, called here: no session, no Java."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pytest

from asyncstream import (
    AsyncFunction,
    CallTimeout,
    KeyedContext,
    KeyedProcessFunction,
    Pipeline,
    Stream,
    UserFunctionError,
)
from asyncstream.operators.functions import FailedCall
from asyncstream.plan import Output
from asyncstream.runtime.spark import enrich_column
from asyncstream.runtime.spark.stages import Route, stages_of
from asyncstream.runtime.spark.state_transfer import route_of
from asyncstream.runtime.spark.wire import keys as keys_of_groups
from asyncstream.runtime.spark.wire.batches import NOW, Leaving
from asyncstream.runtime.spark.wire.columns import FEW
from asyncstream.runtime.spark.wire.envelope import BATCH, PAYLOAD, Packer, entering, pack, packed
from asyncstream.runtime.spark.wire.keys import KeyGroups, label_of
from asyncstream.runtime.spark.wire.rows import RowWriter
from asyncstream.runtime.spark.worker import loop, outputs, tasks
from asyncstream.runtime.spark.worker.exits import Exit
from asyncstream.runtime.spark.worker.loop import (
    LONG_LIVED,
    MOST_READING,
    LoopThread,
    settle,
    staying,
    token_of,
)
from asyncstream.runtime.spark.worker.operators import Terms
from asyncstream.runtime.spark.worker.outputs import write_rows
from asyncstream.runtime.spark.worker.shipped import Shipped
from asyncstream.runtime.spark.worker.tasks import StageTask, run_stage
from asyncstream.windowing import WindowResult
from tests.spark.cluster import columns
from tests.spark.contract import on_stand_in, row
from tests.spark.fake_spark import Worker
from tests.spark.tasks import batch, one_stage, unpack


async def same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def test_outputs_leave_while_inputs_come_in() -> None:
    pipeline = Pipeline()
    pipeline.source([]).map(dict).async_map(same).to([], name="out")
    events: list[str] = []

    def batches() -> Iterator[Any]:
        for number in range(4):
            events.append("in")
            yield batch(number)

    for _ in run_stage(one_stage(pipeline, "out"), batches()):
        events.append("out")
    assert events[:2] == ["in", "in"] or events[:2] == ["in", "out"]
    assert "out" in events[: events.index("in") + 4]
    assert events.count("out") == 4


@pytest.mark.parametrize("block", [1, 4, 100])
def test_rows_are_taken_in_blocks_and_leave_as_one_arrow_batch(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "BLOCK", block)
    pipeline = Pipeline()
    taken: list[int] = []

    def noted(row: dict[str, Any]) -> dict[str, Any]:
        taken.append(row["v"])
        return row

    pipeline.source([]).map(noted).to([], name="out")
    given = [batch(*range(7)), batch(), batch(7), batch(*range(8, 20))]
    out = []
    for leaving in run_stage(one_stage(pipeline, "out"), iter(given)):
        out.append(leaving.to_pydict()["v"])
        assert taken == [v for some in out for v in some]
    assert out == [some.to_pydict()["v"] for some in given if some.num_rows]


def test_many_rows_that_one_arrow_batch_becomes_leave_before_all_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "BLOCK", 2)
    monkeypatch.setattr(outputs, "ROWS", 10)
    pipeline = Pipeline()
    pipeline.source([]).flat_map(lambda row: [row] * 4).to([], name="out")
    out = [some.to_pydict()["v"] for some in run_stage(one_stage(pipeline, "out"), iter([batch(*range(9))]))]
    assert [v for some in out for v in some] == [v for v in range(9) for _ in range(4)]
    assert list(map(len, out)) == [16, 16, 4]


def test_task_that_is_given_up_ends_its_calls() -> None:
    import asyncio

    class Slow(AsyncFunction[Any, Any]):
        ended: list[int] = []  # noqa: RUF012 - of the class: looked at from outside

        async def invoke(self, value: Any) -> Any:
            if value["v"]:
                try:
                    await asyncio.sleep(60)
                finally:
                    self.ended.append(value["v"])
            return value

    pipeline = Pipeline()
    pipeline.source([]).async_map(Slow()).to([], name="out")
    running: Any = run_stage(one_stage(pipeline, "out"), iter([batch(0), batch(1, 2), batch(3)]))
    next(running)
    running.close()
    assert set(Slow.ended) <= {1, 2, 3}


def test_failure_ends_the_other_calls_and_names_the_step() -> None:
    import asyncio

    ended = []

    async def one_fails(row: dict[str, Any]) -> Any:
        if row["v"] == 2:
            await asyncio.sleep(0.01)
            raise OSError("no route")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(row["v"])

    pipeline = Pipeline()
    pipeline.source([]).async_map(one_fails, name="ask").to([], name="out")
    with pytest.raises(UserFunctionError, match="step 'ask': OSError: no route") as caught:
        list(run_stage(one_stage(pipeline, "out"), iter([batch(1, 2, 3)])))
    assert sorted(ended) == [1, 3]
    assert "in one_fails" in caught.value.__notes__[0]


def test_what_a_failed_task_says_has_bytes_in_utf_8() -> None:
    """PySpark does not end a task whose error has none."""

    async def opens(row: dict[str, Any]) -> Any:
        raise OSError(os.fsdecode(b"no file \xe9"))

    pipeline = Pipeline()
    pipeline.source([]).async_map(opens, name="ask").to([], name="out")
    with pytest.raises(UserFunctionError, match="step 'ask': OSError: no file") as caught:
        list(run_stage(one_stage(pipeline, "out"), iter([batch(1)])))
    assert "\\udce9" in caught.value.__notes__[0]
    assert "".join([str(caught.value), *caught.value.__notes__]).encode()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_function_that_asks_the_process_to_end_fails_the_task_and_the_next_one_runs(
    kind: type[BaseException],
) -> None:
    """asyncio has such an exception stop the loop, and who waits for that would wait for ever."""

    async def leaves(row: dict[str, Any]) -> Any:
        if row["v"] == 2:
            raise kind("enough")
        return row

    pipeline = Pipeline()
    pipeline.source([]).async_map(leaves, name="ask").to([], name="out")
    task = one_stage(pipeline, "out")
    with pytest.raises(UserFunctionError, match=f"step 'ask': {kind.__name__}: enough, which asks") as caught:
        list(run_stage(task, iter([batch(1, 2, 3)])))
    assert "in leaves" in caught.value.__notes__[0]
    assert [found.to_pylist() for found in run_stage(task, iter([batch(1)]))] == [[{"v": 1}]]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_plain_function_that_asks_the_process_to_end_is_told_by_step_and_element_first(
    kind: type[BaseException],
) -> None:
    def leaves(*_: Any) -> Any:
        raise kind("enough")

    class Leaves(KeyedProcessFunction[Any, Any]):
        open = process_element = leaves

    pipeline = Pipeline()
    pipeline.source([]).map(leaves, name="check").to([], name="out")
    with pytest.raises(UserFunctionError) as caught:
        list(run_stage(one_stage(pipeline, "out"), iter([batch(1)])))
    assert str(caught.value) == f"step 'check': {kind.__name__}: enough, on element {{'v': 1}}"
    assert "in leaves" in caught.value.__notes__[0]
    with pytest.raises(UserFunctionError, match=f"step 'count': {kind.__name__}: enough, when it was opened"):
        on_stand_in([[row(1)]], lambda s: {"n": s.key_by("key").process(Leaves(), name="count"), "rows": s})


def test_function_that_cannot_be_opened_is_blamed_and_opened_again_by_the_next_task() -> None:
    class Fragile(AsyncFunction[Any, Any]):
        tries = 0

        async def open(self) -> None:
            self.tries += 1
            if self.tries == 1:
                raise OSError("no route")

        async def invoke(self, value: Any) -> Any:
            return value

    pipeline = Pipeline()
    pipeline.source([]).async_map(Fragile(), name="ask").to([], name="out")
    task = one_stage(pipeline, "out")
    with pytest.raises(UserFunctionError, match="step 'ask': OSError: no route, when it was opened"):
        list(run_stage(task, iter([batch(1)])))
    assert [found.to_pylist() for found in run_stage(task, iter([batch(1)]))] == [[{"v": 1}]]


def test_first_copy_of_a_stage_stays_and_the_oldest_is_closed() -> None:
    class Closing(AsyncFunction[Any, Any]):
        closed = False

        async def close(self) -> None:
            self.closed = True

    loop = LoopThread()
    pipeline = Pipeline()
    pipeline.source([]).to([], name="out")
    (stage,), (copy,) = (stages_of(pipeline._graph, streaming=False) for _ in range(2))
    function = Closing()
    resident = loop.resident("0", stage)
    lent = resident.lend(function)
    assert resident.lend(function) is lent  # of another step: opened once
    assert resident.lend(Closing()) is not lent
    loop.call(lent.open())
    assert loop.resident("0", copy) is resident
    for number in range(1, 17):
        assert not function.closed
        loop.resident(str(number), stage)
    assert function.closed


@pytest.mark.parametrize("hangs", [False, True])
def test_function_that_cannot_be_closed_does_not_concern_the_stage_that_takes_its_place(
    hangs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Unclosable(AsyncFunction[Any, Any]):
        async def close(self) -> None:
            if hangs:
                await asyncio.Event().wait()
            raise OSError("gone")

    worker = Worker()
    pipeline = Pipeline()
    pipeline.source([]).to([], name="out")
    (stage,) = stages_of(pipeline._graph, streaming=False)
    worker.call(worker.resident("0", stage).lend(Unclosable()).open())
    for number in range(1, 17):
        worker.resident(str(number), stage)
    worker.end()
    assert ("did not end within 10 s" if hangs else "OSError: gone") in caplog.text


@pytest.mark.parametrize("key", [None, "k", b"k", 7, 7.5, True, ("a", 1), ("a", ("b", None))])
def test_key_has_the_same_group_in_every_process(key: Any) -> None:
    import subprocess
    import sys

    program = f"from asyncstream.runtime.spark.wire.keys import KeyGroups; print(KeyGroups(1000).of({key!r}))"
    told = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert int(told.stdout) == KeyGroups(1000).of(key)


class Place(NamedTuple):
    row: int
    column: str


@dataclass(frozen=True)
class Level:
    height: float
    note: str = field(default="", compare=False)


NOON = datetime(2026, 5, 5, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "keys",
    [
        (1, 1.0, True),
        ((1, "a"), (1.0, "a"), Place(1, "a")),
        (frozenset({1, 2.5}), frozenset({2.5, True})),
        (NOON, NOON.astimezone(timezone(timedelta(hours=2)))),
        (Level(1), Level(1.0), Level(1, "seen")),
    ],
)
def test_equal_keys_have_equal_groups(keys: tuple[Any, ...]) -> None:
    assert len(set(keys)) == 1
    assert len({KeyGroups(1000).of(key) for key in keys}) == 1


def test_worker_finds_the_group_of_a_key_once_for_all_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(key: Any) -> None:
        asked.append(key)

    monkeypatch.setattr(keys_of_groups, "check_key", counted)
    pipeline = Pipeline()
    rows: Stream[dict[str, Any]] = pipeline.source([])
    rows.key_by(lambda row: f"key {row['v']} of this test").reduce(lambda one, _: one).to([], name="out")
    first, *_ = stages_of(pipeline._graph, streaming=True)
    routes = frozenset(route.number for route in first.exits)
    terms = Terms(4, routes, streaming=True)
    for _ in range(2):
        task = StageTask(uuid4().hex, first, terms, source=tuple(routes))
        (envelopes,) = run_stage(task, iter([batch(1, 2, 1)]))
        assert sum(envelopes.column("count").to_pylist()) == 3
    assert asked == ["key 1 of this test", "key 2 of this test"]


def test_envelopes_of_ordered_calls_do_not_tell_how_long_these_took() -> None:
    """Or Spark would fail a job of which it has to run a task again: it compares what has been shuffled."""
    slow: set[int] = set()

    async def ask(row: dict[str, Any]) -> dict[str, Any]:
        for _ in range(100 if row["v"] in slow else 0):
            await asyncio.sleep(0)
        return row

    pipeline = Pipeline()
    asked = pipeline.source([]).async_map(ask, concurrency=4)
    asked.key_by(lambda row: row["v"] % 2).count_window(9).collect().to([], name="out")
    first, _ = stages_of(pipeline._graph, streaming=False)
    routes = frozenset(route.number for route in first.exits)
    source = tuple(route.number for route in first.entries)
    task = StageTask(uuid4().hex, first, Terms(4, routes, streaming=False, replays=True), source=source)
    seen = []
    for some in ((), (1, 5, 6)):
        slow |= set(some)
        seen.append([rows for out in run_stage(task, iter([batch(*range(8))])) for rows in out.to_pylist()])
    assert seen[0] == seen[1]


def test_exit_without_a_key_keeps_timestamps_and_what_belongs_to_each_watermark() -> None:
    exit_ = Exit(Route(0, Output("ask"), "out"), KeyGroups(4), True, (3,), NOW)
    given = [1, 2]
    exit_.process_batch(["a", "b"], given)
    exit_.process_batch(["c"], None)
    exit_.process_batch([], None)
    exit_.advance_watermark(5)
    exit_.process_batch(["d"], [7])
    assert exit_.count == 4
    assert [item[1:5] for item in exit_.take()] == [
        (NOW, (3,), ["a", "b", "c"], [1, 2, None]),
        (5, (3,), ["d"], [7]),
    ]
    assert given == [1, 2]
    assert exit_.take() == []


ALIVE: list[list[Any]] = [[]]
"""Weak references to all that was unpickled."""


class Packed:
    """Tells when it is unpickled."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        ALIVE[0].append(weakref.ref(self))


def leaving(*values: Any) -> Leaving:
    return Leaving(Route(0, Output("ask"), "out"), 0, (0,), list(values), [None] * len(values))


def test_no_payload_is_large_unless_an_element_is() -> None:
    elements = [b"x" * (size * 1000) for size in (1, 1, 1, 2_000, 1, 700, 700, 700, *[1] * 2_000, 3_000)]
    parts = list(packed(leaving(*elements)._replace(timestamps=list(range(len(elements))))))
    assert max(count for count, _ in parts) > 100
    assert all(len(payload) <= PAYLOAD or count == 1 for count, payload in parts)
    unpacked = [unpack(payload) for _, payload in parts]
    assert [value for values, _ in unpacked for value in values] == elements
    assert [time for _, times in unpacked for time in times] == list(range(len(elements)))
    assert [len(values) for values, _ in unpacked] == [count for count, _ in parts]


@pytest.mark.parametrize(("count", "kind"), [(FEW - 1, list), (FEW, pa.RecordBatch)])
def test_what_is_for_one_of_several_outputs_leaves_as_its_rows(count: int, kind: type) -> None:
    pipeline = Pipeline()
    pipeline.source([]).async_map(same).to([], name="out")
    task = one_stage(pipeline, "out")
    assert task.output is not None
    several = replace(task, output=None, outputs=(task.output,))
    (envelopes,) = run_stage(several, iter([batch(*range(count))]))
    (payload,) = envelopes.column("payload").to_pylist()
    assert [type(part.values) for part in entering(task.output.route, payload)] == [kind]
    rows = [row for part in write_rows(task.output, iter([envelopes])) for row in part.to_pylist()]
    assert rows == [{"v": v} for v in range(count)]


def test_heritage_stays_in_one_piece() -> None:
    states = Leaving(Route(route_of(1), Output("ask"), "out"), 0, (0,), [b"x" * 3_000_000, 5], [None, None])
    ((count, payload),) = packed(states)
    assert (count, unpack(payload)[0][1]) == (2, 5)


def test_batches_of_envelopes_are_of_a_size_that_can_be_held() -> None:
    packer = Packer(0, event_time=True)
    batches = list(packer.batches([leaving(*map(os.urandom, [500_000] * 100))], 5, {0: 1}))
    assert len(batches) > 2
    assert all(batch.nbytes < 2 * BATCH for batch in batches)
    assert sum(sum(batch.column("count").to_pylist()) for batch in batches) == 100 + 1


def test_what_leaves_for_one_place_goes_into_one_envelope_until_that_is_large() -> None:
    packer = Packer(0, event_time=False)
    items = [leaving(number, b"x" * 1_000)._replace(groups=(number % 2,)) for number in range(3_000)]
    assert not list(packer.batches(items[:1_000], 0, None))
    assert not list(packer.batches(items[1_000:], 0, None))
    (batch,) = packer.batches([], 0, {})
    rows = batch.to_pylist()
    assert len(rows) == 2 * 2
    assert all(len(row["payload"]) <= PAYLOAD for row in rows)
    for group in range(2):
        mine = [row for row in rows if row["group"] == label_of(group)]
        found = [unpack(row["payload"]) for row in mine]
        assert [value for values, _ in found for value in values[::2]] == list(range(group, 3_000, 2))
        assert [(len(values), len(stamps)) for values, stamps in found] == [
            (row["count"],) * 2 for row in mine
        ]
    assert not list(packer.batches([], 0, {}))


def test_envelopes_of_a_bounded_job_are_unpacked_one_after_the_other() -> None:
    """The elements of a batch of envelopes, all at once, take many times what the envelopes do."""
    pipeline = Pipeline()
    alive: list[Any] = []
    most: list[int] = []

    class Look(KeyedProcessFunction[Packed, int]):
        def process_element(self, value: Packed, ctx: KeyedContext, out: Any) -> None:
            most.append(sum(reference() is not None for reference in alive))
            out(value.number)

    source: Stream[Any] = pipeline.source([])
    source.key_by(lambda row: 0).process(Look()).to([], name="out")
    _, stage = stages_of(pipeline._graph, streaming=False)
    route = next(route.number for route in stage.exits)
    task = StageTask(uuid4().hex, stage, Terms(4, frozenset({route}), streaming=False), 1)
    entry = stage.entries[0]
    ALIVE[:] = [alive]
    items = [Leaving(entry, NOW, (number,), [Packed(number)], [None]) for number in range(200)]
    (batch_of_envelopes,) = Packer(0, event_time=False).batches(items, 0, {})
    alive.clear()
    rows = [row for found in run_stage(task, iter([batch_of_envelopes])) for row in found.to_pylist()]
    assert sum(row["count"] for row in rows if row["route"] == route) == 200
    assert max(most) < 5


def test_few_large_elements_are_packed_before_there_are_many() -> None:

    pipeline = Pipeline()
    pipeline.source([]).map(dict).key_by(lambda row: 0).count_window(2).collect().to([], name="out")
    stage, _ = stages_of(pipeline._graph, streaming=False)
    route = next(route.number for route in stage.exits)
    entries = tuple(route.number for route in stage.entries)
    task = StageTask(uuid4().hex, stage, Terms(4, frozenset({route}), streaming=False), source=entries)
    came = 0

    def batches() -> Iterator[Any]:
        nonlocal came
        for _ in range(40):
            came += 1
            yield pa.record_batch({"doc": pa.array(["x" * 2_000_000])})

    running: Any = run_stage(task, batches())
    next(running)
    assert came < 20
    assert len(list(running)) >= 3


def test_error_that_cannot_be_unpickled_travels_as_its_text() -> None:
    from pyspark.sql.types import StringType

    class Refused(Exception):
        def __init__(self, status: int, reason: str) -> None:
            super().__init__(f"{status} {reason}")

    refused = FailedCall("x", Refused(503, "busy"), 3, None, 0, 1)
    [[found], _] = unpack(pack(leaving(refused)))
    assert str(found.error) == "Refused: 503 busy"
    rows = RowWriter("failed", columns(error=StringType()))
    assert [*rows.batches([found])] == [*rows.batches([refused])]
    [[found], _] = unpack(pack(leaving(FailedCall("x", CallTimeout("late"), 1, None, 0, 1))))
    assert type(found.error) is CallTimeout


class OfScript(NamedTuple):
    """Stands for one that a script defines: no worker finds it by its name."""

    a: int


OfScript.__module__ = "no_module_of_workers"


def test_elements_of_classes_that_workers_do_not_have_travel_with_them() -> None:
    class Suit(Enum):
        HEARTS = "h"
        CLUBS = "c"

    @dataclass(frozen=True)
    class Card:
        suit: Suit
        rank: int

    elements = [Card(Suit.CLUBS, 7), Card(Suit.HEARTS, 1), OfScript(3), {"suit": Suit.CLUBS}]
    ((_, payload),) = packed(leaving(*elements))
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(elements)
    assert unpack(payload)[0] == elements
    assert unpack(payload)[0][3]["suit"] is Suit.CLUBS
    program = "import sys, pickle; values, _ = pickle.loads(sys.stdin.buffer.read()); print(values)"
    done = subprocess.run([sys.executable, "-c", program], input=payload, capture_output=True, check=True)
    assert "OfScript(a=3)" in done.stdout.decode()


def test_stages_that_are_planned_again_go_by_the_same_token() -> None:
    class Client(AsyncFunction[Any, Any]):
        def __init__(self, place: str) -> None:
            self.place = place

        async def invoke(self, value: Any) -> Any:
            return value

    def token(place: str, concurrency: int = 3) -> str:
        pipeline = Pipeline()
        pipeline.source([]).async_map(Client(place), concurrency=concurrency).to([], name="out")
        return token_of(stages_of(pipeline._graph, streaming=False))

    assert token("here") == token("here")
    assert len({token("here"), token("there"), token("here", 4)}) == 3


def test_element_that_cannot_be_pickled_is_refused_with_the_step() -> None:
    from asyncstream import PipelineError

    with pytest.raises(PipelineError, match="what step ask emits cannot be pickled"):
        pack(leaving(lambda: None))


def test_rows_are_written_from_dicts_tuples_with_names_and_single_values() -> None:
    from pyspark.sql.types import LongType, StringType

    writer = RowWriter("out", columns(key=StringType(), value=LongType()))
    results = [{"key": "a", "value": 1}, WindowResult("b", 0, 10, 2), {"key": "c", "value": None}]
    (found,) = writer.batches(results)
    assert found.to_pylist() == [
        {"key": "a", "value": 1},
        {"key": "b", "value": 2},
        {"key": "c", "value": None},
    ]
    (found,) = RowWriter("out", columns(v=LongType())).batches([1, 2])
    assert found.to_pylist() == [{"v": 1}, {"v": 2}]
    with pytest.raises(UserFunctionError, match=r"step 'out'.*a int has no columns"):
        list(writer.batches([1]))


class _Loaded:
    """Goes only when the garbage collector looks at it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_first_tasks_load_is_kept_from_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "_tasks", loop._Tasks())
    loaded = []
    for _ in range(4):
        settle()
        loaded.append(_Loaded())
    looked_at = {id(one) for one in gc.get_objects()}
    assert [id(one) in looked_at for one in loaded] == [False, False, False, True]


def test_what_a_worker_has_loaded_and_needs_no_more_goes_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_tasks", loop._Tasks())
    settle()
    gone = weakref.ref(_Loaded())
    settle()
    gc.collect()
    assert gone() is not None
    for _ in range(LONG_LIVED):
        settle()
    assert gone() is None
    later = weakref.ref(_Loaded())
    for _ in range(4 * LONG_LIVED - loop._tasks.count - 1):
        settle()
    assert later() is not None
    settle()
    assert later() is None


def test_what_belongs_to_tasks_that_read_state_goes_after_many_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "_tasks", loop._Tasks(os.getpid(), next_look=10**6))
    gone = []
    for _ in range(MOST_READING):
        settle()
        for _ in range(3):  # groups
            with staying():
                gone.append(weakref.ref(_Loaded()))
    gc.collect()
    assert all(one() is not None for one in gone)
    settle()
    assert not any(one() for one in gone)


def test_what_belongs_to_a_task_goes_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import cloudpickle

    monkeypatch.setattr(loop, "_tasks", loop._Tasks(os.getpid(), next_look=10**6))
    pipeline = Pipeline()
    pipeline.source([]).map(dict).to([], name="out")
    function = cloudpickle.dumps(Shipped(one_stage(pipeline, "out")))
    for _ in range(2):
        shipped = cloudpickle.loads(function)  # as PySpark does before all else
        gone = weakref.ref(_Loaded())
        assert [some.num_rows for some in run_stage(shipped.value, iter([batch(1)]))] == [1]
        gc.collect()  # as it does when a task has ended
        assert gone() is None
    assert loop._tasks.count == 2


def test_the_function_of_a_column_is_shipped_as_stages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import cloudpickle
    from pyspark.sql.types import LongType

    monkeypatch.setattr(loop, "_tasks", loop._Tasks(os.getpid(), next_look=10**6))

    async def same(row: Any) -> Any:
        return row

    of_columns = enrich_column(same, LongType())
    udf = inspect.getclosurevars(of_columns).nonlocals["function"]
    cloudpickle.loads(cloudpickle.dumps(udf.func))
    assert loop._tasks.count == 1
