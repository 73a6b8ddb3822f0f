"""What a job says in the log has fields, for those who collect it: which pipeline, which step, how many."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from asyncstream import (
    AsyncStreamError,
    Checkpoints,
    MemoryStore,
    Pipeline,
    Restarts,
    Sink,
    UserFunctionError,
)
from asyncstream.guards import retry
from asyncstream.lease import Lease
from tests.runtime.parts import boom, run


async def fail(value: int) -> int:
    await asyncio.sleep(1)
    result: int = boom(value)
    return result


async def hang(value: int) -> int:
    await asyncio.sleep(1_000)
    return value


def fields(record: logging.LogRecord, *names: str) -> tuple[Any, ...]:
    return tuple(vars(record).get(name) for name in names)


def run_with(function: Any, given: list[int], **options: Any) -> None:
    pipeline = Pipeline("shop")
    stream = pipeline.source(given).async_map(function, name="ask", **options)
    for tag in ("failed", "timed_out"):
        if "route" in (options.get("on_error"), options.get("on_timeout")):
            getattr(stream, tag).discard()
    stream.discard()
    run(pipeline.run())


class Closed(Sink[int]):
    async def open(self) -> None:
        raise OSError("closed")

    async def write(self, values: Any, timestamps: Any) -> None:
        raise AssertionError


@pytest.mark.parametrize("sink", [[], Closed()])
def test_error_that_is_raised_is_not_also_written_to_stderr_where_there_is_no_log(
    sink: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def failing() -> Any:
        pipeline = Pipeline("shop")
        pipeline.source([1]).map(boom).to(sink)
        return pipeline

    async def unattended() -> None:
        async with failing().start():
            await asyncio.sleep(1)

    handlers, logging.root.handlers = logging.root.handlers, []
    try:
        with pytest.raises(AsyncStreamError):
            run(failing().run())
        assert capsys.readouterr().err == ""
        if sink == []:
            with pytest.raises(AsyncStreamError):
                run(unattended())
            assert "pipeline 'shop' failed" in capsys.readouterr().err
    finally:
        logging.root.handlers = handlers
    with pytest.raises(AsyncStreamError):
        run(failing().run())
    assert "pipeline 'shop' failed" in caplog.text


def test_elements_that_are_skipped_are_said_at_once_and_then_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run_with(fail, list(range(25)), concurrency=1, on_error="skip")
    records = [record for record in caplog.records if record.name == "asyncstream.elements"]
    assert {record.levelno for record in records} == {logging.WARNING}
    assert [fields(record, "elements") for record in records] == [(1,), (10,), (10,), (4,)]
    assert fields(records[0], "step", "outcome", "error_type") == ("ask", "skipped", "Boom")
    assert records[0].message == "step 'ask' has skipped 1 element(s); the last: Boom: on purpose"


def test_elements_whose_call_timed_out_are_said(caplog: pytest.LogCaptureFixture) -> None:
    run_with(hang, [1], timeout=5, on_timeout="skip")
    (record,) = [record for record in caplog.records if record.name == "asyncstream.elements"]
    assert fields(record, "step", "outcome", "error_type") == ("ask", "skipped", "CallTimeout")


def test_elements_that_somebody_looks_after_are_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "asyncstream"):
        run_with(fail, [1], on_error="route", timeout=5, on_timeout="route")
    (record,) = [record for record in caplog.records if record.name == "asyncstream.elements"]
    assert record.levelno == logging.INFO
    assert fields(record, "outcome") == ("routed",)


def test_plain_functions_say_it_too(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Pipeline("shop")
    pipeline.source([1, 2]).map(boom, on_error="skip", name="parse").discard()
    run(pipeline.run())
    records = [record for record in caplog.records if record.name == "asyncstream.elements"]
    assert [fields(record, "step", "elements") for record in records] == [("parse", 1), ("parse", 1)]


def test_retries_are_for_who_looks_closely(caplog: pytest.LogCaptureFixture) -> None:
    guarded = retry(fail, attempts=3, wait_initial=0.5, wait_jitter=0)
    with caplog.at_level(logging.DEBUG, "asyncstream.guards"):
        run_with(guarded, [1], on_error="skip")
    records = [record for record in caplog.records if record.name == "asyncstream.guards"]
    assert {record.levelno for record in records} == {logging.DEBUG}
    assert [fields(record, "attempt", "wait_seconds") for record in records] == [(1, 0.5), (2, 1.0)]


def test_end_of_a_job_names_pipeline_and_step(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UserFunctionError):
        run_with(fail, [1])
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert fields(record, "pipeline", "step") == ("shop", "ask")


def test_restarts_and_what_they_go_on_from_have_fields(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Pipeline("shop")
    pipeline.source([1], name="orders").async_map(fail, name="ask").discard(name="end")
    work = pipeline.run(checkpoints=Checkpoints(store=MemoryStore()), restart=Restarts(1, within=600))
    with caplog.at_level(logging.INFO, "asyncstream"), pytest.raises(UserFunctionError):
        run(work)
    (restart,) = [record for record in caplog.records if "restart 1 of 1" in record.message]
    assert fields(restart, "pipeline", "restart") == ("shop", 1)
    (resumed,) = [record for record in caplog.records if "goes on from checkpoint" in record.message]
    assert fields(resumed, "pipeline", "checkpoint") == ("shop", 1)


class Raising(logging.Handler):
    """Of a program: one that does not say by `handleError` that it could not write."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log's server is away")


@pytest.fixture
def raising() -> Iterator[None]:
    handler = Raising(logging.WARNING)
    logging.getLogger("asyncstream").addHandler(handler)
    yield
    logging.getLogger("asyncstream").removeHandler(handler)


@pytest.mark.usefixtures("raising")
def test_job_that_fails_ends_though_the_log_raises() -> None:
    async def unattended() -> None:
        async with asyncio.timeout(60), failing.start():
            await asyncio.sleep(30)

    failing = Pipeline("shop")
    failing.source([1]).async_map(fail, name="ask").discard()
    with pytest.raises(UserFunctionError):
        run(unattended())


class Away(MemoryStore):
    away = False

    async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        if self.away:
            raise OSError("away")
        await super().commit(lease, number, manifest)


@pytest.mark.usefixtures("raising")
def test_job_of_whose_failed_checkpoint_the_log_raises_fails_and_does_not_go_on_without() -> None:
    async def main() -> None:
        async with pipeline.start(checkpoints=Checkpoints(store=store, every=5)) as job:
            store.away = True
            with pytest.raises(OSError, match="the log's server is away"):
                async with asyncio.timeout(60):
                    await job.checkpoint()

    store, pipeline = Away(), Pipeline("shop")
    pipeline.submissions(name="in").discard()
    with pytest.raises(OSError, match="the log's server is away"):
        run(main())
