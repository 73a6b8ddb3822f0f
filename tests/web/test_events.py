"""What a pipeline publishes reaches every client that listens, slow ones and those that come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import BackgroundTasks, FastAPI, Response

from asyncstream import (
    AscendingTimestamps,
    Checkpoints,
    Count,
    Job,
    MemoryStore,
    Pipeline,
    PipelineError,
    TumblingWindows,
)
from asyncstream.testing.loop import run_virtual
from asyncstream.web import JobDep, events, lifespan
from asyncstream.web.asgi import Application, Receive, Scope, Send
from tests.web.client import Answer, Listening, http, request


def publishing(*names: str) -> Pipeline:
    pipeline = Pipeline("news")
    news = pipeline.submissions(name="news")
    for name in names:
        news.publish(name=name)
    return pipeline


def at(job: Job, **options: Any) -> Application:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await events(job, **options)(scope, receive, send)

    return app


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Job]:
    async with lifespan(publishing("all"), **options)(None) as state:
        yield state["job"]


def heard(body: str | bytes) -> list[Any]:
    lines = (body if isinstance(body, str) else body.decode()).splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def marks(body: str) -> list[str]:
    return [line[4:] for line in body.splitlines() if line.startswith("id: ")]


def test_every_client_hears_everything_until_the_job_ends() -> None:
    async def main() -> list[list[Any]]:
        async with running() as job:
            app = at(job)
            async with Listening(app, http("/")) as one, Listening(app, http("/")) as other:
                await one.until("id: ")
                await other.until("id: ")
                for number in range(5):
                    await job.submit(number)
                await job.drain()
                return [heard((await each.ended()).body) for each in (one, other)]

    assert run_virtual(main()) == [[0, 1, 2, 3, 4]] * 2


def test_clients_hear_what_they_ask_for_as_events_of_a_type() -> None:
    async def main() -> str:
        async with running() as job:
            app = at(job, filter=lambda number: number % 2, event="odd")
            async with Listening(app, http("/")) as listening:
                await listening.until("id: ")
                for number in range(5):
                    await job.submit(number)
                await job.drain()
                return (await listening.ended()).body.decode()

    body = run_virtual(main())
    assert heard(body) == [1, 3]
    assert body.count("event: odd\n") == 2


def test_client_that_was_cut_off_hears_what_it_missed() -> None:
    async def main() -> list[Any]:
        async with running() as job:
            app = at(job)
            async with Listening(app, http("/")) as first:
                await first.until("id: ")
                await job.submit("before")
                mark = marks(await first.until("before"))[-1]
            await job.submit("meanwhile")
            await asyncio.sleep(1)
            async with Listening(app, http("/", headers={"Last-Event-ID": mark})) as second:
                await second.until("meanwhile")
                await job.submit("after")
                return heard(await second.until("after"))

    assert run_virtual(main()) == ["meanwhile", "after"]


def test_client_stays_to_the_end_of_one_service_and_goes_on_with_the_next() -> None:
    async def main() -> tuple[list[Any], list[Any]]:
        store = MemoryStore()
        async with running(checkpoints=Checkpoints(store=store), grace=0) as job:
            listening = Listening(at(job), http("/"))
            await listening.__aenter__()
            await listening.until("id: ")
            await job.submit("first")
            await listening.until("first")
        before = (await listening.ended()).body.decode()
        async with running(checkpoints=Checkpoints(store=store), grace=0) as job:
            await job.submit("second")
            await asyncio.sleep(1)  # the client is not back yet
            headers = {"Last-Event-ID": marks(before)[-1]}
            async with Listening(at(job), http("/", headers=headers)) as back:
                return heard(before), heard(await back.until("second"))

    before, after = run_virtual(main())
    assert before == ["first"]
    assert after[0]["after"]  # it is told that this is another run
    assert after[1:] == ["second"]


def test_server_in_another_event_loop_is_refused() -> None:
    """It would not hear of what comes; a handler that is no `async def` has no loop, and is not meant."""

    async def main() -> None:
        async with running() as job:
            answer = await asyncio.to_thread(events, job)
            with pytest.raises(PipelineError, match="outside the event loop of the job"):
                await asyncio.to_thread(asyncio.run, request(answer, http("/")))
            async with Listening(answer, http("/")) as client:
                await job.submit("news")
                await client.until("news")

    asyncio.run(main())


def test_head_of_a_stream_has_an_end() -> None:
    """A client that asks for it leaves the connection open, and waited for the answer to its next request."""

    async def main() -> Answer:
        async with running() as job:
            return await request(at(job), http("/", method="HEAD"))

    answer = run_virtual(main())
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


def test_slow_client_is_told_how_much_it_missed_and_holds_nobody_up() -> None:
    async def main() -> list[Any]:
        async with running(replay=3) as job, Listening(at(job), http("/")) as slow:
            await slow.until("id: ")
            slow.pause()
            for number in range(10):
                await job.submit(number)
                await asyncio.sleep(1)
            slow.go_on()
            return heard(await slow.until("data: 9"))

    assert run_virtual(main()) == [0, {"events": 6}, 7, 8, 9]


def test_job_that_is_over_is_told_by_the_status() -> None:
    async def main() -> tuple[int, int, list[Any]]:
        async with running() as job:
            await job.submit(1)
            await job.drain()
            finished = await request(at(job), http("/"))
            came_back = await request(at(job), http("/", headers={"Last-Event-ID": "other-1"}))
        async with lifespan(publishing("all"), checkpoints=Checkpoints(store=MemoryStore()), grace=0)(
            None
        ) as state:
            pass
        stopped = await request(at(state["job"]), http("/"))
        return finished.status, stopped.status, heard(came_back.body)[1:]

    assert run_virtual(main()) == (204, 503, [1])


def test_client_that_did_not_want_the_last_events_is_told_that_the_job_is_over() -> None:
    async def main() -> tuple[list[Any], int]:
        async with running() as job:
            app = at(job, filter=lambda value: value < 2)
            async with Listening(app, http("/")) as listening:
                await listening.until("id: ")
                for value in (1, 2, 3):
                    await job.submit(value)
                await job.drain()
                body = (await listening.ended()).body.decode()
            back = await request(app, http("/", headers={"Last-Event-ID": marks(body)[-1]}))
        return heard(body), back.status

    assert run_virtual(main()) == ([1], 204)


@dataclass
class Price:
    cents: int


def test_events_are_written_as_json_lines_are() -> None:
    async def main() -> list[Any]:
        pipeline = Pipeline("news")
        news = pipeline.submissions(name="news")
        news.filter(lambda each: not isinstance(each, int)).publish(name="all")
        timed = news.filter(lambda each: isinstance(each, int)).event_time(
            lambda each: each, AscendingTimestamps()
        )
        timed.key_by(lambda each: each % 2).window(TumblingWindows(1)).aggregate(n=Count()).publish(
            name="windows"
        )
        async with lifespan(pipeline)(None) as state:
            job = state["job"]
            default = {"default": lambda value: {"of": type(value).__name__}}
            async with (
                Listening(at(job, of="all", **default), http("/")) as every,
                Listening(at(job, of="windows"), http("/")) as windows,
            ):
                await every.until("id: ")
                await windows.until("id: ")
                for value in (Price(5), {"a": 1.5}, object(), 10):
                    await job.submit(value)
                await job.drain()
                return [heard((await each.ended()).body) for each in (every, windows)]

    every, windows = run_virtual(main())
    assert every == [{"cents": 5}, {"a": 1.5}, {"of": "object"}]
    start = "1970-01-01T00:00:00+00:00"
    assert windows == [{"key": 0, "start": start, "end": "1970-01-01T00:00:01+00:00", "n": 1}]


def test_fastapi_lets_them_pass_with_their_headers() -> None:
    async def main() -> tuple[dict[str, str], list[Any], list[str]]:
        done: list[str] = []
        service = FastAPI(lifespan=lifespan(publishing("all")))

        @service.get("/news")
        async def news(job: JobDep, after: BackgroundTasks) -> Response:
            after.add_task(done.append, "behind")
            stream = events(job, "all")
            stream.headers["x-shop"] = "7"
            return stream

        async with (
            service.router.lifespan_context(service) as state,
            Listening(service, http("/news", state=state)) as listening,
        ):
            await listening.until("id: ")
            assert state is not None
            await state["job"].submit("it works")
            await state["job"].drain()
            answer = await listening.ended()
        return answer.headers, heard(answer.body), done

    headers, body, done = run_virtual(main())
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["x-shop"] == "7"
    assert "content-length" not in headers
    assert (body, done) == (["it works"], ["behind"])


def test_without_a_lifespan_events_are_kept_from_the_first_client_on() -> None:
    async def main() -> list[Any]:
        async with publishing("all").start() as job:
            await job.submit("before")
            await asyncio.sleep(1)
            async with Listening(at(job), http("/")) as listening:
                mark = marks(await listening.until("id: "))[0]
            await job.submit("kept")
            async with Listening(at(job), http("/", headers={"Last-Event-ID": mark})) as listening:
                return heard(await listening.until("kept"))

    assert run_virtual(main()) == ["kept"]


@pytest.mark.parametrize("fails", ["writing", "filter"])
def test_element_that_cannot_be_told_is_missed_and_ends_nothing(
    fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Who was cut off over it would come back to it, and be cut off again."""

    def positive(value: Any) -> bool:
        return bool(value > 0)

    odd = object() if fails == "writing" else "no number"

    async def main() -> tuple[list[Any], list[Any]]:
        async with running() as job:
            app = at(job, filter=positive if fails == "filter" else None)
            async with Listening(app, http("/")) as client:
                await client.until("id: ")
                for value in (1, odd, 2, odd, 3):
                    await job.submit(value)
                told = await client.until("data: 3")
            headers = {"Last-Event-ID": marks(told)[1]}
            async with Listening(app, http("/", headers=headers)) as back:
                return heard(told), heard(await back.until("data: 3"))

    missed = {"events": 1}
    assert run_virtual(main()) == ([1, missed, 2, missed, 3], [missed, 2, missed, 3])
    assert len([record for record in caplog.records if "an event is not sent" in record.message]) == 2


def test_what_is_not_there_is_refused() -> None:
    async def main() -> None:
        other = Pipeline("other").submissions().publish(name="all")
        async with lifespan(publishing("all", "more"))(None) as state:
            job = state["job"]
            for of, message in ((None, "of: expected"), ("none", "of: expected"), (other, "of: expected")):
                with pytest.raises(PipelineError, match=message):
                    events(job, of)
            for event in ("a\nb", "", "\0", "\ud83d", 3):
                with pytest.raises(PipelineError, match="event: expected"):
                    events(job, "all", event=event)  # type: ignore[arg-type]
            with pytest.raises(PipelineError, match="default: expected a function, got"):
                events(job, "all", default=["name"])  # type: ignore[arg-type]
            with pytest.raises(PipelineError, match="filter"):
                events(job, "all", filter="odd")  # type: ignore[arg-type]
            with pytest.raises(PipelineError, match="replay"):
                events(job, "all", replay=0)
        with pytest.raises(PipelineError, match="job: expected"):
            events(state, "all")  # type: ignore[arg-type]

    run_virtual(main())
    with pytest.raises(PipelineError, match="replay"):
        lifespan(publishing("all"), replay=-1)
