"""Lookups in tables that change: read again in the background, or streams."""

from __future__ import annotations

import asyncio
import csv
import json
import logging
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import (
    AsyncFunction,
    AsyncStreamError,
    Change,
    Checkpoints,
    JsonLinesSource,
    LookupTable,
    ManualClock,
    MemoryStore,
    Pipeline,
    PipelineError,
    SourceError,
    Stream,
    UserFunctionError,
    long_work,
)
from asyncstream.connectors.http import HttpLookup
from asyncstream.errors import HttpError
from asyncstream.guards import retry
from asyncstream.lookup import Asked, How, Joined, StreamLookupSpec, read, table
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.call_log import retry_of
from asyncstream.operators.fingerprint import fingerprint
from asyncstream.testing import harness
from tests.operators.recorder import Recorder

PLANES = [{"id": "1", "maker": "Airbus"}, {"id": "2", "maker": "Boeing"}]

virtual = pytest.mark.usefixtures("virtual_time", "tidy")


def maker(event: Any, row: Any) -> Any:
    return event, None if row is None else row["maker"]


async def run(events: Any, table: Any, **options: Any) -> list[Any]:
    out: list[Any] = []
    made = Pipeline("lookups")
    made.source(events).lookup(table, on=lambda event: event, into=maker, **options).to(out)
    await made.run()
    return out


def write_csv(path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, PLANES[0])
        writer.writeheader()
        writer.writerows(PLANES)


def write_json(path: Path) -> None:
    path.write_text("\n".join(map(json.dumps, PLANES)) + "\n\n")


def write_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(PLANES), path)


WRITERS = {"csv": write_csv, "jsonl": write_json, "ndjson": write_json, "parquet": write_parquet}


@pytest.mark.parametrize("ending", WRITERS)
async def test_the_rows_of_a_file_are_there_before_the_first_element(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"planes.{ending}"
    WRITERS[ending](path)
    table = LookupTable.from_file(path, key="id")
    assert await run(["1", "3", "2"], table) == [("1", "Airbus"), ("3", None), ("2", "Boeing")]
    assert await run(["1", "3", "2"], table, how="inner") == [("1", "Airbus"), ("2", "Boeing")]


async def test_rows_of_parquet_are_made_of_pythons_own_types(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    since, age = datetime(2026, 11, 23, 12), timedelta(hours=1)
    times = pa.array([since], pa.timestamp("ns")), pa.array([age], pa.duration("ns"))
    path = tmp_path / "planes.parquet"
    pq.write_table(pa.table([pa.array(["1"]), *times], names=["id", "since", "age"]), path)
    (row,) = (await LookupTable.from_file(path, key="id").read()).values()
    assert row == {"id": "1", "since": since, "age": age}
    assert [type(value) for value in row.values()] == [str, datetime, timedelta]


async def test_the_rows_of_a_query_have_the_names_of_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "planes #1.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table planes (id, maker, year)")
        database.executemany(
            "insert into planes values (?, ?, ?)", [("1", "Airbus", 10), ("2", "Boeing", 20)]
        )
    query = """
        select id, maker from planes
        where year > ?
    """
    named = LookupTable.from_sqlite(path, query.replace("?", ":year"), key="id", parameters={"year": 15})
    table = LookupTable.from_sqlite(path, query, key="id", parameters=[15])
    assert await named.read() == await table.read()
    assert await run(["1", "2"], table) == [("1", None), ("2", "Boeing")]
    joined = "select * from planes as a join planes as b on a.id = b.id and a.maker = b.maker"
    assert (
        await LookupTable.from_sqlite(path, joined, key="id").read()
        == await LookupTable.from_sqlite(path, "select * from planes", key="id").read()
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (lambda folder: LookupTable.from_file(folder / "no.csv", "id"), "No such file"),
        (lambda folder: LookupTable.from_file(_short_csv(folder), "id"), "line 3 has not as many values"),
        (lambda folder: LookupTable.from_sqlite(folder / "no.db", "select 1", "id"), "unable to open"),
        (
            lambda folder: LookupTable.from_sqlite(_database(folder), "select 1 as id, 2 as id", "id"),
            "a name of its own for each column, got 'id' more than once",
        ),
        (lambda folder: LookupTable.from_call(_listed), "a mapping of keys to rows, got list"),
        (lambda folder: LookupTable.from_call(_mapped, "id"), "a list of rows, got dict"),
        (lambda folder: LookupTable.from_call(_framed, "id"), "a list of rows, got DataFrame; .* to_dicts"),
        (lambda folder: LookupTable.from_call(_listed, "name"), "step 'lookup': .* row .* no field 'name'"),
        (lambda folder: LookupTable.from_call(_listed, lambda row: []), "row .* has no key: .* unhashable"),
    ],
)
async def test_what_cannot_be_read_at_the_start_fails_the_job(
    tmp_path: Path, table: Callable[[Path], Any], message: str
) -> None:
    with pytest.raises(AsyncStreamError, match=message):
        await run(["1"], table(tmp_path))


@pytest.mark.parametrize(
    ("table", "kind", "message"),
    [
        (
            lambda folder: LookupTable.from_file(folder / "no.csv", "id"),
            SourceError,
            "cannot read {}/no.csv: ",
        ),
        (lambda folder: LookupTable.from_file(_short_csv(folder), "id"), SourceError, "{}/"),
        (
            lambda folder: LookupTable.from_sqlite(folder / "no.db", "select 1", "id"),
            SourceError,
            "cannot read {}/no.db: OperationalError: ",
        ),
        (
            lambda folder: LookupTable.from_sqlite(_database(folder), "select 1 as id, 2 as id", "id"),
            PipelineError,
            "query: ",
        ),
        (
            lambda folder: LookupTable.from_call(_failing, "id"),
            UserFunctionError,
            "HttpError: http://planes: ",
        ),
        (lambda folder: LookupTable.from_call(_listed, "name"), UserFunctionError, "ValueError: row "),
    ],
)
async def test_error_of_what_cannot_be_read_says_whose_fault_it_is_and_names_the_step(
    tmp_path: Path, table: Callable[[Path], Any], kind: type[AsyncStreamError], message: str
) -> None:
    with pytest.raises(AsyncStreamError) as caught:
        await run(["1"], table(tmp_path))
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"step 'lookup': {message.format(tmp_path)}")
    assert kind is PipelineError or getattr(caught.value, "step", None) == "lookup"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_reading_that_never_comes_back_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    pipe = tmp_path / "dead.jsonl"
    os.mkfifo(pipe)  # to open it waits for who writes, as on a disk that is gone
    lookups = Pipeline("lookups")
    lookups.source(PLANES).lookup(LookupTable.from_file(pipe, key="id"), on="id").to([])

    async def main() -> None:
        async with lookups.start(open_timeout=0.05):
            pass

    before = set(threading.enumerate())
    with closing(asyncio.new_event_loop()) as loop:
        with pytest.raises(UserFunctionError, match="did not open within"):
            loop.run_until_complete(main())
        hanging = set(threading.enumerate()) - before
        pipe.open("w").close()
    assert {thread.daemon for thread in hanging} == {True}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", 'id,maker\n1,"Airbus\n2,Boeing\n3,Cessna\n', r"t\.csv: line 2: unexpected end of data"),
        ("t.csv", "id,maker,maker\n1,Airbus,Boeing\n", r"t\.csv: the header names a column more than once"),
        ("t.csv", "id,maker\n1,Citro\udceb\n", r"t\.csv: 'utf-8' codec can't decode"),
        ("t.jsonl", '{"id": "1"}\n\n{"id": \n', r"t\.jsonl: line 3: "),
        ("t.jsonl", '{"id": "\udceb"}\n', r"t\.jsonl: line 1: "),
    ],
)
async def test_file_that_is_damaged_is_named_with_the_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(AsyncStreamError, match=message):
        await run(["1"], LookupTable.from_file(tmp_path / name, "id"))


@pytest.mark.parametrize(
    ("name", "text"), [("t.csv", "id,maker\n1,Airbus\n"), ("t.jsonl", '{"id": "1", "maker": "Airbus"}\n')]
)
async def test_a_byte_order_mark_is_no_part_of_a_table(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert await run(["1"], LookupTable.from_file(tmp_path / name, "id")) == [("1", "Airbus")]


async def test_empty_lines_are_no_part_of_a_table_nor_its_header(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\n\nid,maker\n\n1,Airbus\n\n2,Boeing\n\n")
    assert await run(["1", "2"], LookupTable.from_file(path, "id")) == [("1", "Airbus"), ("2", "Boeing")]


def _short_csv(folder: Path) -> Path:
    path = folder / "short.csv"
    path.write_text("id,maker\n1,Airbus\n2\n")
    return path


async def _listed() -> Any:
    return PLANES


async def _failing() -> Any:
    raise HttpError("http://planes", 503, "busy", retryable=True)


async def _mapped() -> Any:
    return {"1": PLANES[0]}


async def _framed() -> polars.DataFrame:
    return polars.DataFrame({"id": ["1"]})


class Service(AsyncFunction[None, Any]):
    """Gives the rows that it has; is slow, or fails, if it is told so."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {"1": {"maker": "first"}}
        self.calls, self.opened, self.closed = 0, 0, 0
        self.error: BaseException | None = None
        self.slow: asyncio.Event | None = None

    async def open(self) -> None:
        self.opened += 1

    async def invoke(self, value: None) -> Any:
        self.calls += 1
        if self.slow is not None:
            await self.slow.wait()
        if self.error is not None:
            raise self.error
        return dict(self.rows)

    async def close(self) -> None:
        self.closed += 1


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@virtual
async def test_a_table_is_read_again_behind_the_elements(caplog: pytest.LogCaptureFixture) -> None:
    """Old rows are served while it is read, and when that fails; the failure is said and does not last."""
    service, clock, out = Service(), ManualClock(0), list[Any]()
    made = Pipeline("lookups")
    table = LookupTable.from_call(service, every=60)
    made.submissions(name="in").lookup(table, on=lambda event: event, into=maker, name="planes").to(out)

    async def ask() -> Any:
        await job.submit("1")
        await settled()
        return out[-1][1]

    async with made.start(clock=clock) as job:
        assert await ask() == "first"
        service.rows = {"1": {"maker": "second"}}
        service.slow = asyncio.Event()
        clock.set_ms(59_999)
        await settled()
        assert service.calls == 1
        clock.set_ms(60_001)
        await settled()
        assert service.calls == 2
        assert await ask() == "first"
        clock.set_ms(200_000)
        await settled()
        assert service.calls == 2, "one reading at a time"
        service.slow.set()
        await settled()
        assert await ask() == "second"
        service.error = ConnectionError("service is away")
        with caplog.at_level(logging.WARNING, "asyncstream.lookup"):
            clock.set_ms(260_001)
            await settled()
        assert "step 'planes': reading Service again failed" in caplog.text
        assert "service is away" in caplog.text
        assert await ask() == "second"
        service.error, service.rows = None, {"1": {"maker": "third"}}
        clock.set_ms(320_002)
        await settled()
        assert await ask() == "third"
        assert job.metrics()["planes"] == {"table_rows": 1, "reads": 3, "failed_reads": 1, "missed": 0}
        service.slow = asyncio.Event()
        clock.set_ms(400_000)
        await settled()
        await job.drain()
    assert (service.opened, service.closed) == (1, 1)


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others run behind each row that a table takes in, or lets go."""
    monkeypatch.setattr(long_work, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(table, "SLICE", 1)
    monkeypatch.setattr(read, "SLICE", 1)


class Row(dict[str, int]):
    made = 0
    gone = 0

    def __del__(self) -> None:
        Row.gone += 1


@virtual
@pytest.mark.usefixtures("row_by_row")
async def test_others_run_while_a_large_table_is_taken_in_and_the_one_before_let_go() -> None:
    rows, taken, gone, clock = 200, [0], [0], ManualClock(0)

    def as_taken() -> Iterator[Row]:
        for number in range(rows):
            Row.made += 1
            yield Row(id=number)

    async def load() -> Iterator[Row]:
        return as_taken()

    async def look() -> None:
        while True:
            taken.append(Row.made)
            gone.append(Row.gone)
            await asyncio.sleep(0)

    Row.made = Row.gone = 0
    made = Pipeline("lookups")
    planes = LookupTable.from_call(load, "id", every=60)
    made.submissions(name="in").lookup(planes, on=int, name="planes").discard()
    looking = asyncio.create_task(look())
    async with made.start(clock=clock) as job:
        rows = 1
        clock.set_ms(60_001)
        while Row.gone < 200:  # noqa: ASYNC110 - of the garbage of another task
            await asyncio.sleep(0)
        await job.drain()
    looking.cancel()
    for counts in (taken, gone):
        assert max(later - before for before, later in pairwise(counts)) <= 2


@virtual
@pytest.mark.usefixtures("row_by_row")
async def test_a_table_has_the_rows_that_there_were_when_it_was_loaded() -> None:
    """It may be the program that keeps them, and goes on to change them."""
    kept = [{"id": number} for number in range(20)]

    async def load() -> Any:
        return kept

    async def read_anew() -> None:
        kept.clear()

    reading_anew = asyncio.create_task(read_anew())
    assert len(await LookupTable.from_call(load, "id").read()) == 20
    await reading_anew
    assert kept == []


@virtual
@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit("panic")])
async def test_whatever_a_reading_fails_with_another_follows(error: BaseException) -> None:
    service, clock = Service(), ManualClock(-100_000)
    made = Pipeline("lookups")
    made.submissions().lookup(LookupTable.from_call(service, every=60), on=str, name="planes").discard()
    async with made.start(clock=clock) as job:
        for now_ms, service.error in ((-39_999, error), (20_002, None)):
            clock.set_ms(now_ms)
            await settled()
        assert job.metrics()["planes"] == {"table_rows": 1, "reads": 2, "failed_reads": 1, "missed": 0}


@virtual
async def test_where_a_reading_fails_is_said_once_until_one_has_worked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service, clock = Service(), ManualClock(0)
    made = Pipeline("lookups")
    made.submissions().lookup(LookupTable.from_call(service, every=60), on=str, name="planes").discard()
    async with made.start(clock=clock) as job:
        for turn, error in enumerate("AABB.C", start=1):
            service.error = None if error == "." else ConnectionError(f"away: {error}")
            clock.set_ms(turn * 60_001)
            await settled()
        assert job.metrics()["planes"]["failed_reads"] == 5
    said = [(record.getMessage()[-1], record.exc_info is not None) for record in caplog.records]
    assert said == [("A", True), ("A", False), ("B", False), ("B", False), ("C", True)]


@virtual
@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no eager tasks")
async def test_a_table_that_is_read_at_once_is_read_again_also_if_tasks_are_eager() -> None:
    """The task that reads was noted as under way after it had ended, and the table was never read again."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    service, clock = Service(), ManualClock(0)
    made = Pipeline("lookups")
    made.submissions().lookup(LookupTable.from_call(service, every=60), on=str, name="planes").discard()
    async with made.start(clock=clock) as job:
        for now_ms in (60_001, 120_002, 180_003):
            clock.set_ms(now_ms)
            await settled()
        assert job.metrics()["planes"]["reads"] == 4


async def test_an_endpoint_that_gives_everything_is_a_table() -> None:
    async def everything(request: web.Request) -> web.Response:
        return web.json_response(PLANES)

    app = web.Application()
    app.router.add_get("/planes", everything)
    async with TestServer(app) as server:
        lookup = HttpLookup(str(server.make_url("/planes")))
        found = await run(["1", "3"], LookupTable.from_call(lookup, key="id", every=60))
    assert found == [("1", "Airbus"), ("3", None)]


@virtual
async def test_no_element_is_looked_at_before_the_table_is_there() -> None:
    service, out = Service(), list[Any]()
    service.slow = asyncio.Event()
    made = Pipeline("lookups")
    made.source(["1"]).lookup(LookupTable.from_call(service), on=str, into=maker).to(out)
    running = asyncio.create_task(made.run())
    await settled()
    assert service.calls == 1
    assert out == []
    service.slow.set()
    await running
    assert out == [("1", "first")]


def test_a_harness_does_not_drive_what_reads_in_the_background() -> None:
    with pytest.raises(PipelineError, match="this one waits for calls"):
        harness(lambda stream: stream.lookup(LookupTable.from_call(_mapped), on=str))


@virtual
async def test_what_is_missing_is_asked_for_and_the_others_do_not_wait() -> None:
    asked = asyncio.Event()

    async def ask(event: str) -> Any:
        await asked.wait()
        return None if event == "9" else {"maker": f"asked for {event}"}

    ways: list[tuple[How, list[Any]]] = [("left", [("9", None)]), ("inner", [])]
    for how, nines in ways:
        asked.clear()
        out: list[Any] = []
        made = Pipeline("lookups")
        table = LookupTable.from_call(Service())
        looked = made.source(["7", "1", "9", "1"]).lookup(
            table,
            on=lambda event: event,
            into=maker,
            how=how,
            missing=ask,
            name="planes",
        )
        looked.to(out)
        async with made.start() as job:
            await settled()
            assert out == [("1", "first"), ("1", "first")]
            asked.set()
            await job.drain()
        assert sorted(out[2:]) == sorted([("7", "asked for 7"), *nines])


@virtual
async def test_what_is_asked_for_is_asked_for_again_after_a_restart() -> None:
    store, never, out = MemoryStore(), asyncio.Event(), list[Any]()

    def define(ask: Any) -> Pipeline:
        made = Pipeline("lookups")
        table = LookupTable.from_call(Service())
        looked = made.submissions(name="in").lookup(table, on=str, into=maker, missing=ask, name="planes")
        looked.to(out, name="out")
        return made

    async def waits(event: str) -> Any:
        await never.wait()

    async def answers(event: str) -> Any:
        return {"maker": "asked"}

    async with define(waits).start(checkpoints=Checkpoints(store=store)) as job:
        await job.submit("7")
        await settled()
        await job.stop(0)
    async with define(answers).start(checkpoints=Checkpoints(store=store)) as job:
        await job.drain()
    assert out == [("7", "asked")]


class Patient(AsyncFunction[str, Any]):
    """Has a row of its own for what takes too long, and never answers."""

    async def invoke(self, value: str) -> Any:
        await asyncio.Event().wait()

    def timeout(self, value: str) -> Any:
        return {"maker": "unknown"} if value == "7" else None


@virtual
@pytest.mark.parametrize("how", ["left", "inner"])
async def test_what_stands_in_for_an_answer_in_time_is_a_row(how: How) -> None:
    table = LookupTable.from_call(Service())
    found = await run(["7", "8"], table, missing=retry(Patient()), timeout=1, how=how)
    assert found == [("7", "unknown"), *([("8", None)] if how == "left" else [])]


def test_who_asks_for_what_is_missing_is_known_like_any_async_function() -> None:
    async def other(event: str) -> Any:
        return None

    retried, joined = retry(_asked), Joined(str)
    assert retry_of(Asked(retried, joined)) is retried
    assert fingerprint(Asked(retried, joined)) == fingerprint(_asked) != fingerprint(Asked(other, joined))
    made = [Joined(str, into=max), Joined(str, into=min), Joined(str, how="inner"), joined]
    assert len({fingerprint(Asked(retried, each)) for each in made}) == len(made)


# ---------------------------------------------------------------------- streams


def test_a_stream_is_a_table_of_its_last_rows() -> None:
    def define(events: Stream[Any], planes: Stream[Any]) -> Stream[Any]:
        table = planes.as_table("id", deleted=lambda row: row["maker"] is None)
        return events.lookup(table, on=lambda event: event, into=maker)

    with harness(define) as tested:
        tested.push("1")
        tested.push({"id": "1", "maker": "Airbus"}, input=1)
        tested.push("1")
        tested.restart()
        tested.push("1")
        tested.push({"id": "1", "maker": "Boeing"}, input=1)
        tested.push("1")
        tested.push({"id": "1", "maker": None}, input=1)
        tested.push("1")
        assert [row for _, row in tested.collect()] == [None, "Airbus", "Airbus", "Boeing", None]


def test_a_change_log_is_a_table() -> None:
    def define(events: Stream[Any], rows: Stream[Any]) -> Stream[Any]:
        return events.lookup(rows.as_table(lambda row: row[0]), on=lambda event: event)

    with harness(define) as tested:
        for change in (Change("+I", ("a", 1)), Change("-U", ("a", 1)), Change("+U", ("a", 2))):
            tested.push(change, input=1)
            tested.push("a")
        tested.push(Change("-D", ("a", 2)), input=1)
        tested.push("a")
        assert [row and row[1] for _, row in tested.collect()] == [1, 1, 2, None]


def test_a_row_of_a_change_log_may_say_that_it_is_gone() -> None:
    def define(events: Stream[Any], rows: Stream[Any]) -> Stream[Any]:
        table = rows.as_table("id", deleted="withdrawn")
        return events.lookup(table, on=lambda event: event, into=lambda _, row: row is not None)

    row = {"id": 1, "withdrawn": False}
    with harness(define) as tested:
        for kind, withdrawn in (("+I", False), ("+U", True), ("+U", False), ("-U", True), ("-D", False)):
            tested.push(Change(kind, {**row, "withdrawn": withdrawn}), input=1)  # type: ignore[arg-type]
            tested.push(1)
        assert tested.collect() == [True, False, True, True, False]


def test_only_elements_move_time() -> None:
    def define(events: Stream[Any], rows: Stream[Any]) -> Stream[Any]:
        return events.lookup(rows.as_table(lambda row: row), on=lambda event: event)

    with harness(define) as tested:
        tested.advance(50, input=1)
        tested.push("a", at=10)
        tested.advance(20)
        tested.set_idle(True, input=1)
        assert tested.watermark == 20
        assert not tested.is_idle
        assert tested.collect(timestamps=True) == [(("a", None), 10)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("event"), st.sampled_from("abc")),
        st.tuples(st.just("row"), st.sampled_from("abc"), st.integers(0, 9)),
        st.tuples(st.just("cut")),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


@given(STEPS)
def test_a_lookup_is_that_of_a_dict(script: list[Any]) -> None:
    spec = StreamLookupSpec(Joined(lambda event: event), lambda row: row[0], lambda row: row[1] == 0)

    def opened() -> Any:
        operator = spec.build()
        operator.out = recorder
        operator.open(OperatorContext())
        return operator

    recorder, rows, expected = Recorder(), dict[str, Any](), list[Any]()
    operator = opened()
    for kind, *arguments in script:
        if kind == "event":
            operator.process(arguments[0], None)
            expected.append((arguments[0], rows.get(arguments[0])))
        elif kind == "row":
            operator.port(1).process(tuple(arguments), None)
            rows[arguments[0]] = tuple(arguments)
            if arguments[1] == 0:
                del rows[arguments[0]]
        elif kind == "cut":
            operator.tables.cut()
            operator.tables.merge()
        else:
            kept = operator.snapshot()
            operator = opened()
            operator.restore(kept)
    assert recorder.values() == expected


async def test_a_file_may_be_the_table_and_a_stream_at_once(tmp_path: Path) -> None:
    write_json(tmp_path / "planes.jsonl")
    made, out = Pipeline("lookups"), list[Any]()
    planes = made.source(JsonLinesSource(tmp_path / "planes.jsonl"))
    planes.lookup(planes.as_table("id"), on="id", into=lambda one, row: (one["id"], row is None)).to(out)
    await made.run()
    assert [event for event, _ in out] == ["1", "2"]


# ---------------------------------------------------------------------- bad input


def test_a_key_that_is_none_blames_the_element() -> None:
    def define(events: Stream[Any], rows: Stream[Any]) -> Stream[Any]:
        return events.lookup(rows.as_table("id"), on="id")

    with harness(define) as tested:
        with pytest.raises(UserFunctionError, match=r"\{'no': 1\}"):
            tested.push({"no": 1})
        with pytest.raises(UserFunctionError, match=r"\{'id': \[\]\}"):
            tested.push({"id": []}, input=1)


@pytest.mark.parametrize("which", ["into", "deleted", "key"])
def test_plain_function_that_gives_a_coroutine_is_refused(which: str) -> None:
    def of(argument: str, otherwise: Any) -> Any:
        return (lambda *given: _asked(str(given))) if argument == which else otherwise

    def define(events: Stream[Any], rows: Stream[Any]) -> Stream[Any]:
        table = rows.as_table(of("key", "id"), deleted=of("deleted", None))
        return events.lookup(table, "id", into=of("into", None))

    with harness(define) as tested:
        if which == "into":
            tested.push({"id": 1}, input=1)
        with pytest.raises(UserFunctionError, match="must return its result"):
            tested.push({"id": 1}, input=int(which != "into"))


async def test_row_that_would_have_to_be_awaited_is_refused() -> None:
    async def asks(element: str) -> Any:
        return _asked(element)

    with pytest.raises(UserFunctionError, match=r"must return its result, got <coroutine .*; await it"):
        await run(["unknown"], READ, missing=asks, on_error="skip")


async def test_key_of_a_table_that_is_a_coroutine_is_refused() -> None:
    async def rows() -> list[str]:
        return ["a"]

    with pytest.raises(ValueError, match="row 'a' has no key: NotAValue: a plain function must return"):
        await LookupTable.from_call(rows, lambda row: _asked(row)).read()


READ = LookupTable.from_call(_mapped)


def _database(folder: Path) -> Path:
    path = folder / "there.db"
    path.touch()  # to SQLite, a database without tables
    return path


def _query_with(parameters: Any) -> Any:
    return LookupTable.from_sqlite("planes.db", "select 1", "id", parameters=parameters)


async def _asked(event: str) -> Any:
    return {"maker": f"asked for {event}"}


async def _of_two(event: str, row: Any) -> Any:
    return row


WRONG: list[tuple[Any, str]] = [
    (lambda s: s.lookup({"a": 1}, "id"), "table: expected a LookupTable, or a stream's as_table"),
    (lambda s: s.lookup(READ), "on: expected the key of an element's row"),
    (lambda s: s.lookup(READ, 3), "on: expected a function, got 3"),
    (lambda s: s.lookup(READ, "id", how="right"), "how: expected one of 'left', 'inner'"),
    (lambda s: s.lookup(READ, "id", into=3), "into: expected a function"),
    (lambda s: s.lookup(READ, "id", into=_mapped), "into: expected a plain function"),
    (lambda s: s.lookup(READ, "id", missing=3), "missing: expected an async def of one element"),
    (lambda s: s.lookup(READ, "id", concurrency=3), "no options of calls without missing="),
    (
        lambda s: s.lookup(READ, "id", missing=_asked, on_error="route"),
        "expected 'fail' or 'skip'",
    ),
    (lambda s: s.lookup(READ, "id", missing=_asked, timeout=-1), "timeout: expected a positive duration"),
    (lambda s: s.lookup(READ, "id", missing=_asked, limit=3), "lookup: there is no option 'limit'"),
    (lambda s: s.lookup(READ, "id", missing=_of_two), r"missing: expected a function that takes \(element\)"),
    (lambda s: s.lookup(READ, "id", missing=_asked, journal=True), "journal: .* are made on the way"),
    (lambda s: s.lookup(Pipeline("q").source([1]).as_table("id"), "id"), "belongs to another pipeline"),
    (lambda s: s.as_table(), "key: expected the key of a row"),
    (lambda s: s.as_table("id", deleted=3), "deleted: expected a function"),
    (lambda s: LookupTable.from_file("planes.txt", "id"), r"path: expected a file that ends in \.csv"),
    (lambda s: LookupTable.from_file(3, "id"), "path: expected the path of a file"),  # type: ignore[arg-type]
    (lambda s: LookupTable.from_file("a\0.csv", "id"), "path: expected the path of a file"),
    (lambda s: LookupTable.from_sqlite(":memory:", "select 1", "id"), "path: .* a database file"),
    (lambda s: LookupTable.from_sqlite("a\0.db", "select 1", "id"), "path: .* a database file"),
    (lambda s: LookupTable.from_file("planes.csv", "id", every=0), "every: expected a positive duration"),
    (lambda s: LookupTable.from_file("planes.csv", None), "key: expected a function, got None"),  # type: ignore[arg-type]
    (lambda s: LookupTable.from_sqlite("planes.db", "", "id"), "query: expected a SELECT"),
    (lambda s: _query_with("15"), "parameters: expected values in a list"),
    (lambda s: _query_with(15), "parameters: expected .* by name in a dict, got 15"),
    (lambda s: LookupTable.from_call(3), "load: expected an async def"),  # type: ignore[call-overload]
    (lambda s: LookupTable.from_call(dict), "load: .* give an instance, dict"),  # type: ignore[arg-type]
    (lambda s: LookupTable.from_call(lambda: [1]), "load: expected an async def"),  # type: ignore[arg-type, return-value]
    (lambda s: LookupTable.from_call(_asked), r"load: .* that takes \(\), got"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_is_refused_when_it_is_typed(wrong: Any, message: str) -> None:
    source = Pipeline("p").source(["a"])
    with pytest.raises(PipelineError, match=message):
        wrong(source)
    assert [step.name for step in source._graph] == ["source"]


async def test_a_lookup_that_was_refused_may_be_written_again() -> None:
    made, out = Pipeline("p"), list[Any]()
    source = made.source(["1"])
    with pytest.raises(PipelineError, match=r"those of 'planes\.missed' are made on the way"):
        source.lookup(READ, str, missing=_asked, name="planes", effect=True)
    source.lookup(READ, str, into=maker, name="planes").to(out)
    await made.run()
    assert out == [("1", "Airbus")]


def test_a_lookup_in_a_stream_takes_the_keys_of_both() -> None:
    made = Pipeline("p")
    rows = made.source([{"id": 1}]).key_by("id")
    looked = made.source([{"id": 1}]).key_by("id").lookup(rows.as_table(), name="look")
    assert len(looked._graph["look"].inputs) == 2
