"""The job of a service: there while it lives, ended in time by a signal though clients listen."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from asyncstream import AsyncFunction, Checkpoints, Job, JobStopped, MemoryStore, Pipeline, PipelineError
from asyncstream.testing.loop import run_virtual
from asyncstream.web import JobDep, lifespan
from asyncstream.web.ending import Ending, told_to_end
from tests.web.client import http, request
from tests.web.service import service

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


def kept_in(kept: list[Any]) -> Pipeline:
    async def later(order: Any) -> Any:
        await asyncio.sleep(0.01)
        return order

    pipeline = Pipeline("shop")
    pipeline.submissions(name="orders").async_map(later, name="later").to(kept, name="kept")
    return pipeline


def test_job_runs_from_the_start_of_a_service_to_its_end_and_is_drained() -> None:
    async def main() -> tuple[str, str, list[Any]]:
        kept: list[Any] = []
        async with lifespan(kept_in(kept))(None) as state:
            job = state["job"]
            during = job.state
            await job.submit(1)
        return during, job.state, kept

    assert run_virtual(main()) == ("running", "finished", [1])


@pytest.mark.usefixtures("nothing_frozen")
@pytest.mark.parametrize("by_program", [False, True])
def test_what_is_there_when_a_service_starts_is_frozen_until_it_ends(by_program: bool) -> None:
    async def main() -> int:
        async with lifespan(kept_in([]))(None), lifespan(kept_in([]), key="other")(None):
            return gc.get_freeze_count()

    try:
        if by_program:
            gc.freeze()
        assert run_virtual(main()) > 1000
        assert (gc.get_freeze_count() > 1000) is by_program
    finally:
        gc.unfreeze()


def test_with_checkpoints_the_job_is_stopped_and_the_next_service_goes_on() -> None:
    async def main() -> tuple[str, list[Any]]:
        kept: list[Any] = []
        checkpoints = Checkpoints(store=MemoryStore())
        running = lifespan(kept_in(kept), checkpoints=checkpoints, grace=0, key="shop")
        async with running(None) as state:
            await state["shop"].submit(1)
        stopped = state["shop"].state
        async with running(None) as state:
            await asyncio.sleep(1)
        return stopped, kept

    assert run_virtual(main()) == ("stopped", [1])


def test_error_of_the_job_is_raised_at_the_end() -> None:
    async def main() -> None:
        pipeline = Pipeline("shop")
        pipeline.submissions(name="orders").map(lambda order: 1 // order, name="price").discard()
        async with lifespan(pipeline)(None) as state:
            await state["job"].submit(0)

    with pytest.raises(Exception, match="step 'price': ZeroDivisionError"):
        run_virtual(main())


def test_fastapi_gives_the_job_to_whoever_depends_on_it() -> None:
    async def main() -> list[Any]:
        kept: list[Any] = []
        from fastapi import FastAPI

        app = FastAPI(lifespan=lifespan(kept_in(kept)))

        @app.post("/orders/{number}", status_code=202)
        async def accept(number: int, job: JobDep) -> str:
            assert isinstance(job, Job)
            await job.submit(number)
            return job.state

        async with app.router.lifespan_context(app) as state:
            answer = await request(app, http("/orders/7", method="POST", state=state))
        return [answer.status, answer.json(), kept]

    assert run_virtual(main()) == [202, "running", [7]]


def test_wrong_arguments_are_refused_when_the_service_is_made() -> None:
    pipeline = kept_in([])
    with pytest.raises(PipelineError, match="pipeline: expected a Pipeline"):
        lifespan(pipeline.start())  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="grace"):
        lifespan(pipeline, grace=-1)
    with pytest.raises(PipelineError, match="key"):
        lifespan(pipeline, key="")
    with pytest.raises(PipelineError, match="checkpoints: expected"):
        lifespan(pipeline, checkpoints=5)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="open_timeout"):
        lifespan(pipeline, open_timeout=-1)


# ---------------------------------------------------------------------- signals


def test_server_hears_of_a_signal_after_the_job() -> None:
    heard: list[str] = []

    async def main() -> None:
        with told_to_end(lambda: heard.append("job")), told_to_end(lambda: heard.append("other job")):
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)

    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append("server"))
    try:
        run_virtual(main())
        assert heard == ["server", "other job", "job", "server"]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_service_that_is_told_to_end_while_it_starts_does_not_start(number: int) -> None:
    """It may have to wait for long, until another job has ended that holds the store, say."""
    happened: list[str] = []

    class Slow(AsyncFunction[int, int]):
        async def open(self) -> None:
            happened.append("opens")
            signal.raise_signal(number)
            try:
                await asyncio.sleep(1e6)
            finally:
                signal.raise_signal(number)  # somebody has no patience
                await asyncio.sleep(1)

        async def invoke(self, value: int) -> int:
            return value

        async def close(self) -> None:
            happened.append("closes")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: happened.append(str(context)))
        pipeline = Pipeline("shop")
        pipeline.submissions(name="orders").async_map(Slow(), name="slow").discard()
        async with lifespan(pipeline, open_timeout=1e7)(None):
            happened.append("runs")

    def server(number: int, frame: object) -> None:
        happened.append("server")

    before = signal.signal(number, server)
    try:
        with pytest.raises(JobStopped, match="told to end while 'shop' was starting"):
            run_virtual(main())
        assert signal.getsignal(number) is server
    finally:
        signal.signal(number, before)
    assert happened == ["opens", "server", "server", "closes"]


def test_job_that_opens_in_the_moment_in_which_it_is_told_to_end_is_ended() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with kept_in([]).start() as job:
            ending = Ending(job, keeps=False, grace=1)
            opened: asyncio.Future[Job] = loop.create_future()
            waiting = loop.create_task(ending.open(opened))
            await asyncio.sleep(0)
            loop.call_soon(ending.begin)
            opened.set_result(job)
            await waiting
            await asyncio.sleep(1)
            assert job.state == "finished"

    run_virtual(main())


def test_job_that_is_ending_is_drained_though_another_one_does_not_start() -> None:
    async def main() -> list[Any]:
        class Slow(AsyncFunction[int, int]):
            async def open(self) -> None:
                signal.raise_signal(signal.SIGTERM)
                await asyncio.sleep(1e6)

            async def invoke(self, value: int) -> int:
                return value

        kept: list[Any] = []
        second = Pipeline("second")
        second.submissions(name="orders").async_map(Slow(), name="slow").discard()

        async def serve() -> None:
            async with lifespan(kept_in(kept))(None) as state:
                await state["job"].submit(1)
                async with lifespan(second, open_timeout=1e7, key="second")(None):
                    pass

        with pytest.raises(JobStopped, match="'second' was starting"):
            await serve()
        return kept

    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        assert run_virtual(main()) == [1]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signals_that_no_server_takes_are_left_alone() -> None:
    async def main() -> None:
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        with told_to_end(lambda: None):
            assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with closing(asyncio.new_event_loop()) as loop:  # asyncio.run takes SIGINT for itself
            loop.run_until_complete(main())
    finally:
        signal.signal(signal.SIGINT, before)
    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


SHOP = """
import asyncio, os, sys
import uvicorn
from fastapi import FastAPI
from asyncstream import JsonLinesSink, Pipeline
from asyncstream.web import JobDep, LoadLimit, app, lifespan

async def later(order):
    while not os.path.exists(sys.argv[3]):
        await asyncio.sleep(0.01)
    return order

pipeline = Pipeline("shop")
later = pipeline.submissions(name="orders").async_map(later, name="later")
later.to(JsonLinesSink(sys.argv[1], existing="append"), name="kept")
service = FastAPI(lifespan=lifespan(pipeline, checkpoints=sys.argv[2] or None))
service.add_middleware(LoadLimit)
service.mount("/ops", app())

@service.post("/orders/{number}", status_code=202)
async def accept(number: int, job: JobDep):
    await job.submit({"id": number})

uvicorn.run(service, port=0)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("keeps", [False, True])
def test_service_with_clients_that_listen_ends_in_time(tmp_path: Path, number: int, keeps: bool) -> None:
    kept, may_go_on = tmp_path / "kept.jsonl", tmp_path / "may go on"

    async def main() -> list[str]:
        command = ("-c", SHOP, str(kept), str(tmp_path / "state") if keeps else "", str(may_go_on))
        async with (
            asyncio.timeout(90),
            service(*command) as (process, url),
            aiohttp.ClientSession() as session,
            session.get(f"{url}/ops/status/events") as first,
            session.get(f"{url}/ops/status/events") as second,
        ):
            heard = [reading(first), reading(second)]
            await asyncio.gather(*(anext(each) for each in heard))
            for order in range(3):
                async with session.post(f"{url}/orders/{order}") as reply:
                    assert reply.status == 202
            while (await running_calls(session, url)) < 3:
                pass
            process.send_signal(number)
            may_go_on.touch()
            states = [[state async for state in each] for each in heard]
            async with asyncio.timeout(60):
                _, errors = await process.communicate()
            assert b"Traceback" not in errors, errors.decode()
            return [each[-1] for each in states]

    last = asyncio.run(main())
    assert last == ["stopped" if keeps else "finished"] * 2
    orders = [json.loads(line)["id"] for line in kept.read_text().splitlines()]
    assert orders == [0, 1, 2]


async def running_calls(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(f"{url}/ops/status") as reply:
        status = await reply.json()
    counts: dict[str, int] = {step["name"]: step["counts"] for step in status["steps"]}["later"]
    return counts["running"]


async def reading(reply: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """The states that a stream of statuses tells."""
    assert reply.status == 200
    async for line in reply.content:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])["state"]
