"""Past the limit a request is refused at once; what a handler does behind its answer counts no more."""

from __future__ import annotations

import asyncio

import pytest

from asyncstream import JobStopped, PipelineError
from asyncstream.testing.loop import run_virtual
from asyncstream.web import LoadLimit
from asyncstream.web.asgi import Receive, Scope, Send, answer_json
from tests.web.client import Answer, Listening, http, request


def test_requests_past_the_limit_are_refused_until_others_are_answered() -> None:
    async def main() -> list[tuple[int, str | None]]:
        go_on = asyncio.Event()

        async def slow(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == "/slow":
                await go_on.wait()
            await answer_json(send, 202, {})

        app = LoadLimit(slow, limit=2, retry_after=3)
        post = http("/slow", method="POST")
        waiting = [asyncio.create_task(request(app, post)) for _ in range(2)]
        await asyncio.sleep(0)
        refused = await request(app, http("/fast", method="POST"))
        listens = await request(app, http("/fast"))
        go_on.set()
        done = await asyncio.gather(*waiting)
        later = await request(app, http("/fast", method="POST"))
        return [(each.status, each.headers.get("retry-after")) for each in (refused, listens, *done, later)]

    assert run_virtual(main()) == [(503, "3"), (202, None), (202, None), (202, None), (202, None)]


def test_what_a_handler_does_behind_its_answer_does_not_count() -> None:
    async def main() -> Answer:
        async def goes_on(scope: Scope, receive: Receive, send: Send) -> None:
            await answer_json(send, 202, {})
            if scope["path"] == "/long":
                await receive()
                await receive()

        app = LoadLimit(goes_on, limit=1)
        async with Listening(app, http("/long", method="POST")) as long:
            await long.until("{}")
            return await request(app, http("/", method="POST"))

    assert run_virtual(main()).status == 202


@pytest.mark.parametrize(
    "error", [JobStopped("it ends"), ExceptionGroup("two elements", [JobStopped("1"), JobStopped("2")])]
)
def test_job_that_takes_no_more_is_told_as_unavailable(error: Exception) -> None:
    async def main() -> Answer:
        async def stopped(scope: Scope, receive: Receive, send: Send) -> None:
            raise error

        app = LoadLimit(stopped, limit=1)
        await request(app, http("/", method="POST"))
        return await request(app, http("/", method="POST"))  # the place of the first is free again

    answer = run_virtual(main())
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json() == {"error": "the job takes no more elements"}


def test_error_behind_the_beginning_of_an_answer_is_not_hidden() -> None:
    async def main() -> None:
        async def breaks(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise JobStopped("it ends")

        with pytest.raises(JobStopped):
            await request(LoadLimit(breaks), http("/", method="POST"))

    run_virtual(main())


def test_error_that_stands_beside_that_of_the_job_is_not_hidden() -> None:
    async def main() -> None:
        async def fails(scope: Scope, receive: Receive, send: Send) -> None:
            raise ExceptionGroup("two elements", [JobStopped("it ends"), ZeroDivisionError()])

        with pytest.raises(ExceptionGroup):
            await request(LoadLimit(fails), http("/", method="POST"))

    run_virtual(main())


def test_wrong_arguments_are_refused() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None: ...

    with pytest.raises(PipelineError, match="app: expected an ASGI application, got 500"):
        LoadLimit(500)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="limit"):
        LoadLimit(app, limit=0)
    with pytest.raises(PipelineError, match="retry_after"):
        LoadLimit(app, retry_after=-1)
