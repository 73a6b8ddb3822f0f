"""A rate is one for all tasks that run at once, and a breaker that they share."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import Pipeline
from asyncstream.connectors.http import HttpLookup
from asyncstream.guards import LimitServer, SharedLimit, circuit_breaker, rate_limit, retry
from asyncstream.guards.nests import shares_on_one_host
from asyncstream.runtime.spark import enrich
from asyncstream.runtime.spark.session import partitions_of, tasks_at_once
from tests.spark.cluster import columns, event_columns, stream
from tests.spark.fake_spark import StandIn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Session:
    """A session whose context says where Spark runs."""

    def __init__(self, master: str, **settings: str) -> None:
        self.sparkContext = self
        self.master = master
        self.settings = {name.replace("__", "."): value for name, value in settings.items()}
        self.defaultParallelism = 3

    def getConf(self) -> dict[str, str]:
        return self.settings


@pytest.mark.parametrize(
    ("session", "tasks"),
    [
        (Session("local"), 1),
        (Session("local[4]"), 4),
        (Session("local[4,3]", spark__default__parallelism="200"), 4),
        (Session("local[4]", spark__task__cpus="2"), 2),
        (Session("local-cluster[2,3,1024]"), 6),
        (Session("yarn"), 3),
        (Session("yarn", spark__executor__instances="5", spark__executor__cores="4"), 20),
        (Session("spark://a:7077", spark__cores__max="12", spark__task__cpus="5"), 2),
        (
            Session(
                "k8s://a",
                spark__dynamicAllocation__enabled="true",
                spark__dynamicAllocation__maxExecutors="10",
                spark__executor__instances="2",
                spark__executor__cores="2",
            ),
            20,
        ),
        (StandIn(1), None),
    ],
)
def test_tasks_at_once(session: Any, tasks: int | None) -> None:
    assert tasks_at_once(session) == tasks


@pytest.mark.parametrize(
    ("session", "is_told"),
    [
        (Session("spark://a:7077"), True),
        (Session("k8s://a", spark__dynamicAllocation__enabled="true"), True),
        (Session("spark://a:7077", spark__cores__max="12"), False),
        (Session("yarn", spark__executor__instances="5"), False),
        (Session("local[4]"), False),
    ],
)
def test_rate_that_is_divided_by_what_has_started_so_far_is_told(
    session: Any, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert tasks_at_once(session, ["ask"])
    assert ("'ask' is divided among the 3 cores" in caplog.text) == is_told
    assert ("spark.cores.max" in caplog.text) == is_told
    caplog.clear()
    assert tasks_at_once(session)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("master", "is_told"), [("spark://a:7077", True), ("local[4]", False), ("local-cluster[2,1,512]", False)]
)
def test_limit_that_hosts_do_not_share_is_told(
    master: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    session: Any = Session(master)
    assert tasks_at_once(session, sharing=["ask"])
    assert ("the scope of a limit of 'ask'" in caplog.text) == is_told
    caplog.clear()
    assert tasks_at_once(session)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("url", "is_of_one_host"),
    [
        ("sqlite:///limits.db", True),
        ("unix:///run/redis.sock", True),
        ("limits://secret@127.0.0.1:7", True),
        ("limits://secret@[::1]:7", True),
        ("redis://localhost:6379/0", True),
        ("redis:///0", True),
        ("limits://secret@10.0.0.1:7", False),
        ("rediss://user:password@cache:6379/0", False),
    ],
)
def test_step_whose_scope_is_of_one_host_is_known(url: str, is_of_one_host: bool) -> None:
    async def ask(row: Any) -> Any:
        return row

    scope = SharedLimit(url)
    assert shares_on_one_host(retry(rate_limit(ask, rate=5, scope=scope))) == is_of_one_host
    assert shares_on_one_host(circuit_breaker(ask, scope=scope)) == is_of_one_host
    assert not shares_on_one_host(retry(rate_limit(ask, rate=5)))


def test_settings_of_a_context_are_copied_once() -> None:
    class Counted(Session):
        copies = 0

        def getConf(self) -> dict[str, str]:
            self.copies += 1
            return super().getConf()

    session: Any = Counted("local[4]", spark__task__cpus="2")
    assert [tasks_at_once(session) for _ in range(3)] == [2, 2, 2]
    assert session.copies == 1


def test_partitions_are_told_if_nothing_must_run_for_that(spark: SparkSession) -> None:
    assert partitions_of(spark.range(0, 10, 1, 7)) == 7
    assert partitions_of(spark.range(0, 10, 1, 7).filter("id > 3").coalesce(3)) == 3
    assert partitions_of(spark.range(10).groupBy("id").count()) is None
    frame: Any = StandIn(1).bounded([[]], event_columns())
    assert partitions_of(frame) is None


def test_plan_says_among_how_many_tasks_a_rate_is_divided(spark: SparkSession, tmp_path: Path) -> None:
    async def same(row: Any) -> Any:
        return row

    lookup: Any = HttpLookup("http://planes.example/{key}", rate=5)

    def plan(frame: Any) -> str:
        pipeline = Pipeline()
        rows = pipeline.source([], name="rows").async_map(same, name="as_it_comes")
        asked = rows.async_map(retry(rate_limit(same, rate=5)), name="ask")
        again = asked.key_by(lambda row: row["key"]).async_map(lookup, order="per_key", name="again")
        again.to([], name="out")
        planned = pipeline.on_spark(spark, inputs={"rows": frame}, outputs={"out": event_columns()})
        return planned.describe()

    one = plan(spark.range(0, 9, 1, 1).selectExpr("'k' key", "id ts", "id v"))
    assert "ask: a rate limit is divided among 1 tasks" in one
    assert "again: a rate limit is divided among 2 tasks" in one
    assert one.count("a rate limit") == 2, "a step without one says nothing of it"
    assert "ask: a rate limit is divided among 2 tasks" in plan(stream(spark, tmp_path / "in", [[]]))


@pytest.mark.parametrize("partitions", [1, 2, 8])
def test_rate_holds_over_all_partitions(spark: SparkSession, partitions: int) -> None:
    """
    Real time, since workers are processes; no bound on how long a busy machine takes.

    Tasks that follow each other may find themselves in more processes than run at once, where earlier jobs
    have left some, and a process knows of its own calls only: so each is held to its part of the rate.
    """
    from pyspark.sql.types import DoubleType, LongType

    rate, tasks = 40, min(partitions, 2)

    async def call(row: Any) -> Any:
        return {"id": row["id"], "at": time.time(), "process": os.getpid()}

    guarded: Any = rate_limit(call, rate=rate)
    schema = columns(id=LongType(), at=DoubleType(), process=LongType())
    rows = enrich(spark.range(0, 100, 1, partitions), guarded, schema=schema, concurrency=100).collect()
    assert len(rows) == 100
    times: dict[int, list[float]] = {}
    for row in rows:
        times.setdefault(row.process, []).append(row.at)
    for process in times.values():
        assert most_within(0.5, process) <= rate / tasks
    if len(times) <= tasks:
        assert most_within(0.5, [row.at for row in rows]) <= rate


@pytest.mark.parametrize("where", ["sqlite", "driver"])
def test_shared_rate_is_one_for_all_tasks_in_whatever_process(
    spark: SparkSession, tmp_path: Path, where: str
) -> None:
    from pyspark.sql.types import DoubleType, LongType

    async def call(row: Any) -> Any:
        return {"id": row["id"], "at": time.monotonic()}

    with LimitServer() as server:
        url = server.url if where == "driver" else f"sqlite:///{tmp_path}/limits.db"
        guarded: Any = rate_limit(call, rate=40, scope=SharedLimit(url))
        schema = columns(id=LongType(), at=DoubleType())
        rows = enrich(spark.range(0, 100, 1, 3), guarded, schema=schema, concurrency=100).collect()
    assert sorted(row.id for row in rows) == list(range(100))
    assert most_within(0.5, [row.at for row in rows]) <= 41


def most_within(seconds: float, times: list[float]) -> int:
    # a second for the limiter, but a busy machine holds calls up, and what comes late crowds what is in time
    return max(sum(first <= when < first + seconds for when in times) for first in times)


def test_a_shared_breaker_opens_for_all_tasks_at_once_and_closes_for_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    Real time, since workers are processes: the service is down for seconds from its first call on, and the
    breaker open for longer. A task that went by itself would find the service well too early.
    """
    from pyspark.sql.types import LongType

    down, open_for = 3.0, 4.0

    def is_well() -> bool:
        now = time.time()
        with suppress(FileExistsError), open(tmp_path / "first", "x") as first:
            first.write(str(now))
        well = now >= float((tmp_path / "first").read_text() or now) + down
        with open(tmp_path / f"calls of {os.getpid()}", "a") as calls:
            calls.write(f"{now} {well}\n")
        return well

    async def call(row: Any) -> Any:
        if not is_well():
            raise ConnectionError("the service is down")
        await asyncio.sleep(0.05)
        return {"id": row["id"]}

    with LimitServer() as server:
        shared: Any = SharedLimit(server.url)
        broken = circuit_breaker(call, failures=3, failure_ratio=None, open_for=open_for, scope=shared)
        guarded: Any = retry(broken, attempts=None, timeout=60, wait_initial=0.05, wait_max=0.05)
        frame = spark.range(0, 60, 1, 2)
        rows = enrich(frame, guarded, schema=columns(id=LongType()), concurrency=4).collect()

    assert sorted(row.id for row in rows) == list(range(60))
    called = [
        (float(at), is_well == "True", process.name)
        for process in tmp_path.glob("calls of *")
        for at, is_well in map(str.split, process.read_text().splitlines())
    ]
    refused = sorted(at for at, is_well, _ in called if not is_well)
    answered = sorted(at for at, is_well, _ in called if is_well)
    assert len({process for _, is_well, process in called if is_well}) > 1
    assert answered[0] >= refused[2] + open_for - 0.05, "no task went by itself"
    assert refused[-1] < answered[0], "it was open once"
