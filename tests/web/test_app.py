"""Health, readiness and status over plain ASGI: who may see what, and what a job that is over answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from asyncstream import Job, Pipeline, PipelineError, SourceError, UserFunctionError
from asyncstream.testing.loop import VirtualTimeLoop, run_virtual
from asyncstream.web import app
from asyncstream.web.asgi import Application
from tests.closing_loops import close_amid
from tests.web.client import Answer, Listening, http, request

SECRET = "sesame and more"


async def get(job: Job | None, path: str, **options: Any) -> Answer:
    settings = {name: options.pop(name) for name in ("token", "values") if name in options}
    return await request(app(job, **settings), http(path, **options))


def echo() -> Pipeline:
    pipeline = Pipeline("echo")
    pipeline.submissions(name="orders").to([], name="kept")
    return pipeline


async def failed_job() -> Job:
    """A job that failed on an element that nobody is to see."""

    def price(order: str) -> str:
        raise KeyError(order)

    pipeline = Pipeline("failing")
    pipeline.submissions(name="orders").map(price, name="price").discard()
    job = pipeline.start()

    async def use() -> None:
        async with job:
            await job.submit(SECRET)
            await job.wait()

    with pytest.raises(UserFunctionError):
        await use()
    return job


def test_health_and_readiness_follow_the_job() -> None:
    async def main() -> list[tuple[int, int, str]]:
        seen: list[tuple[int, int, str]] = []

        async def look() -> None:
            health, ready = await get(job, "/healthz"), await get(job, "/readyz")
            seen.append((health.status, ready.status, ready.json()["state"]))

        job = echo().start()
        await look()
        async with job:
            await look()
            await job.drain()
            await look()
        return seen

    assert run_virtual(main()) == [(200, 503, "new"), (200, 200, "running"), (200, 503, "finished")]


def test_failed_job_is_not_healthy_and_tells_no_element() -> None:
    async def main() -> list[Answer]:
        job = await failed_job()
        paths = (("/healthz", ""), ("/readyz", ""), ("/status", ""), ("/status", "values=true"))
        return [await get(job, path, query=query) for path, query in paths]

    health, ready, hidden, shown = run_virtual(main())
    assert (health.status, ready.status, hidden.status) == (503, 503, 200)
    assert health.json() == {"state": "failed", "error": "UserFunctionError"}
    assert health.headers["retry-after"] == "1"
    assert SECRET not in hidden.body.decode()
    assert SECRET in shown.body.decode()


def test_values_can_be_kept_from_everybody() -> None:
    async def main() -> Answer:
        return await get(await failed_job(), "/status", values=False, query="values=true")

    assert SECRET not in run_virtual(main()).body.decode()


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/status", {}, 401),
        ("/status", {"authorization": "Bearer wrong"}, 401),
        ("/status", {"authorization": f"Basic {SECRET}"}, 401),
        ("/status", {"authorization": "Bearer \xe4"}, 401),
        ("/status", {"authorization": f"Bearer {SECRET}"}, 200),
        ("/status", {"authorization": f"bearer {SECRET}"}, 200),
        ("/status/events", {}, 401),
        ("/healthz", {}, 200),
        ("/readyz", {}, 200),
    ],
)
def test_token_guards_all_but_the_health(path: str, headers: Mapping[str, str], status: int) -> None:
    async def main() -> Answer:
        async with echo().start() as job:
            return await get(job, path, headers=headers, token=SECRET)

    answer = run_virtual(main())
    assert answer.status == status
    assert (answer.headers.get("www-authenticate") == "Bearer") == (status == 401)


def test_metrics_are_for_prometheus_and_behind_the_token() -> None:
    async def main() -> list[Answer]:
        async with echo().start() as job:
            await job.submit("one")
            await asyncio.sleep(1)
            headers = {"authorization": f"Bearer {SECRET}"}
            return [
                await get(job, "/metrics", token=SECRET, headers=headers),
                await get(job, "/metrics", token=SECRET),
            ]

    seen, refused = run_virtual(main())
    assert seen.headers["content-type"].startswith("text/plain; version=")
    assert 'asyncstream_elements_read_total{pipeline="echo",step="orders"} 1.0' in seen.body.decode()
    assert refused.status == 401


def test_nothing_can_be_changed() -> None:
    async def main() -> Answer:
        async with echo().start() as job:
            return await get(job, "/status", method="POST")

    answer = run_virtual(main())
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


def test_head_has_no_body() -> None:
    async def main() -> list[Answer]:
        async with echo().start() as job:
            return [await get(job, path, method="HEAD") for path in ("/healthz", "/status/events")]

    for answer in run_virtual(main()):
        assert (answer.status, answer.body) == (200, b"")


def test_every_answer_says_what_a_browser_may_do() -> None:
    async def main() -> list[Answer]:
        async with echo().start() as job:
            return [await get(job, path) for path in ("/healthz", "/status", "/nowhere")]

    for answer in run_virtual(main()):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_job_comes_from_the_state_of_the_service_where_it_is_mounted() -> None:
    async def main() -> list[Answer]:
        async with echo().start() as job:
            with pytest.raises(PipelineError, match=r"no job as 'job' .*lifespan\(pipeline\)$"):
                await get(None, "/status")
            with pytest.raises(
                PipelineError, match=r"no job as 'other' .*lifespan\(pipeline, key='other'\)$"
            ):
                await request(app(key="other"), http("/readyz", state={"job": job}))
            mounted = {"state": {"job": job}, "root_path": "/a/ops"}
            return [
                await get(None, "/a/ops/status", **mounted),
                await get(None, "/a/ops", **mounted),
                await request(app(key="other"), http("/readyz", state={"other": job})),
            ]

    status, bare, other = run_virtual(main())
    assert [step["name"] for step in status.json()["steps"]] == ["orders", "kept"]
    assert (bare.status, bare.headers["location"]) == (307, "ops/")
    assert other.status == 200


@pytest.mark.parametrize(
    ("root", "before"), [("/s", ""), ("/s", "/s"), ("/s/", ""), ("/s/", "/s"), ("/", "")]
)
def test_page_is_found_behind_a_proxy_that_takes_the_prefix_away_or_does_not(root: str, before: str) -> None:
    async def main() -> list[Answer]:
        async with echo().start() as job:
            return [await get(job, before + path, root_path=root) for path in ("/status", "/")]

    assert [answer.status for answer in run_virtual(main())] == [200, 200]


def test_status_is_streamed_until_the_job_is_over() -> None:
    async def main() -> tuple[Answer, Answer]:
        async with echo().start() as job:
            ops = app(job)
            async with Listening(ops, http("/status/events")) as listening:
                await listening.until('"running"')
                await job.drain()
                answer = await listening.ended()
            last = answer.body.decode().rpartition("id: ")[2].split("\n")[0]
            return answer, await request(ops, http("/status/events", headers={"Last-Event-ID": last}))

    answer, again = run_virtual(main())
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    assert [orjson.loads(frame)["state"] for frame in frames] == ["running", "finished"]
    assert again.status == 204  # a browser does not come back for more


def test_who_comes_later_sees_what_was() -> None:
    async def main() -> str:
        async with echo().start() as job:
            ops = app(job)
            async with Listening(ops, http("/status/events")) as first:
                await first.until("data: ")
            await asyncio.sleep(3.5)  # of virtual time: nobody watches
            async with Listening(ops, http("/status/events")) as second:
                return await second.until("-4\n")

    assert run_virtual(main()).count("data: ") == 4


@pytest.mark.parametrize("is_closed", [False, True])
def test_job_is_watched_anew_in_another_event_loop(is_closed: bool) -> None:
    """Who looked has ended with the loop in which it was asked to; a page said nothing new from then on."""

    async def look(ops: Application) -> None:
        async with Listening(ops, http("/status/events")) as page:
            await page.until("data: ")
            before = page.answer.body.count(b"data: ")
            await page.until("-2\n")
            assert (before, page.answer.is_complete) == (1, False)

    def elsewhere(ops: Application) -> None:
        if is_closed:
            close_amid(VirtualTimeLoop(), look(ops))
        else:
            run_virtual(look(ops))

    async def main() -> None:
        async with echo().start() as job:
            ops = app(job)
            for _ in range(2):
                await asyncio.to_thread(elsewhere, ops)

    asyncio.run(main())


def test_job_is_watched_in_two_event_loops_at_once() -> None:
    async def look(ops: Application) -> None:
        async with Listening(ops, http("/status/events")) as page:
            await page.until("-3\n")

    async def main() -> None:
        async with echo().start() as job:
            ops = app(job)
            async with Listening(ops, http("/status/events")) as here:
                await here.until("-1\n")
                await asyncio.to_thread(run_virtual, look(ops))
                assert not here.answer.is_complete

    asyncio.run(asyncio.wait_for(main(), 60))


class Odd(str):
    """Says of itself what is no whole text."""

    def __repr__(self) -> str:
        return "half a character: \ud83d"


def test_status_is_told_whatever_elements_and_errors_say() -> None:
    """Halves of characters, which are in names of files too, have no place in UTF-8."""

    def price(order: str) -> str:
        raise SourceError("no file \udcff")

    async def main() -> tuple[Answer, str]:
        pipeline = Pipeline("odd")
        priced = pipeline.submissions(name="orders").map(price, name="price", on_error="route")
        priced.discard()
        priced.failed.discard()
        async with pipeline.start() as job:
            await job.submit(Odd())
            await asyncio.sleep(1)
            values = app(job, values=lambda value: value)
            async with Listening(values, http("/status/events")) as client:
                streamed = await client.until("half a character")
            return await get(job, "/status", query="values=true"), streamed

    answer, streamed = run_virtual(main())
    assert answer.status == 200
    for body in (answer.body, streamed.partition("data: ")[2].partition("\n")[0]):
        (failure,) = json.loads(body)["steps"][1]["failures"]
        assert failure["element"] == repr(Odd())
    (failure,) = json.loads(answer.body)["steps"][1]["failures"]
    assert failure["error"] == "SourceError: no file \\udcff"


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(PipelineError, match="job: expected a Job"):
        app(echo())  # type: ignore[arg-type]
    for token in ("", " padded", "nicht-\xe4", 5):
        with pytest.raises(PipelineError, match="token: expected"):
            app(token=token)  # type: ignore[arg-type]


def test_served_alone_it_lives_and_refuses_websockets() -> None:
    async def main() -> list[str]:
        sent: list[str] = []

        async def receive() -> Any:
            return {}

        async def send(message: Any) -> None:
            sent.append(message["type"])

        ops = app()
        await ops({"type": "lifespan"}, receive, send)
        await ops({"type": "websocket", "path": "/"}, receive, send)
        return sent

    assert run_virtual(main()) == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
        "websocket.close",
    ]
