"""A job and the threads of the program: what they hand in is accepted once, or they are told otherwise."""

# ruff: noqa: PT012 - what a job raises comes out of its block

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from asyncstream import (
    AsyncFunction,
    Checkpoints,
    CodecError,
    JobStopped,
    KeyedContext,
    KeyedProcessFunction,
    MemoryStore,
    Pipeline,
    PipelineError,
    Stream,
    UserFunctionError,
    sharing,
)
from asyncstream.connectors.submissions import Submissions
from asyncstream.operators import exclusive
from asyncstream.operators.emitting import Emitter
from asyncstream.runtime.aio import from_thread, tickets
from asyncstream.runtime.aio.from_thread import FromThread
from asyncstream.runtime.aio.run import Run
from asyncstream.runtime.aio.tickets import Tickets
from tests.forks import forked
from tests.runtime.parts import Boom, boom, sleeping

THREADS = 16
EACH = 100


def test_submit_from_another_thread_or_loop_names_the_way() -> None:
    async def main() -> None:
        pipeline = Pipeline()
        pipeline.submissions().discard()
        async with pipeline.start() as job:
            with pytest.raises(PipelineError, match=r"use job\.submit_threadsafe"):
                await asyncio.to_thread(asyncio.run, job.submit(1))
            for wait in (job.stop, job.drain, job.wait, job.checkpoint):
                with pytest.raises(PipelineError, match="outside the event loop"):
                    await asyncio.to_thread(asyncio.run, wait())
            with pytest.raises(PipelineError, match=r"use `await job\.submit"):
                job.submit_threadsafe(1)

    asyncio.run(main())


def test_many_threads_at_once_with_little_room() -> None:
    seen: list[tuple[int, int]] = []
    pipeline = Pipeline()
    pipeline.submissions(limit=3).async_map(sleeping(0.0001), concurrency=4).to(seen)

    async def main() -> None:
        async with pipeline.start() as job:

            def submit(thread: int) -> None:
                for number in range(EACH):
                    job.submit_threadsafe((thread, number), timeout=60)

            with ThreadPoolExecutor(THREADS) as pool:
                loop = asyncio.get_running_loop()
                await asyncio.gather(*(loop.run_in_executor(pool, submit, n) for n in range(THREADS)))

    asyncio.run(main())
    assert sorted(seen) == [(thread, number) for thread in range(THREADS) for number in range(EACH)]
    for thread in range(THREADS):
        assert [pair for pair in seen if pair[0] == thread] == [(thread, n) for n in range(EACH)]


def test_what_was_not_accepted_in_time_never_is() -> None:
    seen: list[int] = []
    gate = threading.Event()

    def hold(value: int) -> None:
        seen.append(value)
        gate.wait(60)

    pipeline = Pipeline()
    pipeline.submissions(limit=1).map(hold).discard()

    with pipeline.start_in_thread() as job:
        job.submit(0)  # and now its loop is held
        accepted, refused = [0], []
        for number in range(1, 4):
            try:
                job.submit(number, timeout=0.01)
                accepted.append(number)
            except TimeoutError:
                refused.append(number)
        gate.set()
    assert refused
    assert seen == accepted


@pytest.mark.parametrize("end", ["stop", "drain", "failure"])
def test_thread_that_waits_for_room_hears_of_the_end(end: str) -> None:
    release = threading.Event()

    async def call(value: int) -> int:
        await asyncio.to_thread(release.wait, 10)
        return boom() if end == "failure" else value

    pipeline = Pipeline()
    pipeline.submissions(limit=1, name="in").async_map(call, concurrency=1, buffer=1, name="call").discard()
    told: list[BaseException] = []

    def submit_for_ever(job: Any) -> None:
        try:
            while True:
                job.submit(1)
        except JobStopped as error:
            told.append(error)

    def main() -> None:
        with pipeline.start_in_thread() as job:
            threads = [threading.Thread(target=submit_for_ever, args=(job,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            if end == "failure":
                release.set()
            elif end == "stop":
                threading.Timer(0.1, release.set).start()
                job.stop()
            else:
                threading.Timer(0.1, release.set).start()
                job.stop(grace=0.01)
            for thread in threads:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads)

    if end == "failure":
        with pytest.raises(UserFunctionError, match="step 'call'"):
            main()
        assert all("has failed" in str(error) for error in told)
    else:
        main()
    assert len(told) == 4


@pytest.mark.usefixtures("others_gone")
def test_all_who_wait_hear_of_the_end_though_others_come_meanwhile() -> None:
    """Python 3.11 may collect garbage, and let another thread go on, while a tuple is made of a set."""
    those, waiting = Tickets(), Future[bool]()
    those._waiting.add(waiting)

    def submit(phase: str, info: dict[str, int]) -> None:
        if len(those._waiting) < 10:
            those._waiting.add(Future())

    gc.collect()
    threshold = gc.get_threshold()
    gc.callbacks.append(submit)
    gc.set_threshold(1)
    try:
        those.refuse()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(submit)
    assert isinstance(waiting.exception(), JobStopped)


# ---------------------------------------------------------------------- a job in a thread of its own


def app_around(job: Any) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """A WSGI application, which is what Flask and Django make: each request in some thread of the server."""

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            job.submit(environ["PATH_INFO"], timeout=60)
        except JobStopped:
            start_response("503 Service Unavailable", [])
            return [b"stopped"]
        start_response("202 Accepted", [])
        return [b"accepted"]

    return app


def test_requests_of_a_threaded_web_server() -> None:
    statuses: list[str] = []
    results: list[str] = []
    pipeline = Pipeline("service")
    steps = pipeline.submissions(limit=10).async_map(sleeping(0.0001), concurrency=8)
    handle = steps.results(limit=10)

    def answer(status: str, headers: list[Any]) -> None:
        statuses.append(status)

    def take(job: Any) -> None:
        results.extend(job.results(handle))

    with pipeline.start_in_thread() as job:
        app = app_around(job)
        taking = threading.Thread(target=take, args=(job,))
        taking.start()

        def client(number: int) -> None:
            for request in range(EACH):
                list(app({"PATH_INFO": f"/{number}/{request}"}, answer))

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(client, range(THREADS)))
        job.drain()
        taking.join(60)
        assert job.state == "finished"
        list(app({"PATH_INFO": "/late"}, answer))
    assert statuses == ["202 Accepted"] * THREADS * EACH + ["503 Service Unavailable"]
    assert sorted(results) == sorted(f"/{n}/{r}" for n in range(THREADS) for r in range(EACH))


def test_job_that_ends_waits_for_no_threads_of_another(caplog: pytest.LogCaptureFixture) -> None:
    def passing() -> Pipeline:
        async def call(value: int) -> int:
            return await asyncio.to_thread(lambda: value)

        pipeline = Pipeline()
        pipeline.submissions().async_map(call).thread_map(lambda value: value).results()
        return pipeline

    with passing().start_in_thread() as first:
        first.submit(1)
        assert next(iter(first.results())) == 1  # and now it has threads
        with passing().start_in_thread() as second:
            second.submit(2)
            assert next(iter(second.results())) == 2
        assert "threads that do not end" not in caplog.text


def test_failure_in_the_thread_is_seen_from_outside() -> None:
    pipeline = Pipeline()
    pipeline.submissions().map(boom, name="bad").results()
    with pytest.raises(UserFunctionError, match="step 'bad'"), pipeline.start_in_thread() as job:
        job.submit(1)
        with pytest.raises((UserFunctionError, JobStopped)):
            list(job.results())
        job._thread.join(60)
        assert job.state == "failed"
        assert isinstance(job.error, UserFunctionError)
        with pytest.raises(JobStopped, match="has failed"):
            job.submit(2)
        with pytest.raises(JobStopped, match="its state is 'failed'"):
            job.wait()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_process_that_was_forked_from_that_of_the_job_is_told() -> None:
    """There is no thread of the job in it: it waited for ever."""
    pipeline = Pipeline()
    pipeline.submissions().discard()
    with pipeline.start_in_thread() as job:

        def check() -> None:
            for call in (partial(job.submit, 1), job.wait):
                with pytest.raises(PipelineError, match=f"runs in process {os.getppid()}, from which"):
                    call()

        assert forked(check) == 7
        assert job.submit(1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_function_that_a_job_uses_is_refused_in_a_process_that_was_forked_meanwhile() -> None:
    """There is one event loop in it, so that of the job is not spoken of."""

    class Client(AsyncFunction[int, int]):
        async def invoke(self, value: int) -> int:
            return value

    client = Client()
    pipeline, other = Pipeline(), Pipeline()
    pipeline.submissions().async_map(client).discard()
    other.source([1]).async_map(client).discard()
    with pipeline.start_in_thread() as job:
        assert job.submit(1)

        def check() -> None:
            refused = f"Client is in use in process {os.getppid()}, from which"
            with pytest.raises(PipelineError, match=refused):
                other.run_blocking()

        assert forked(check) == 7


@pytest.mark.parametrize("way", ["map", "thread_map"])
def test_closing_a_job_in_one_of_its_steps_is_refused(way: str) -> None:
    found: Future[BaseException | None] = Future()

    def close(value: int) -> int:
        try:
            job.close()
        except BaseException as error:
            found.set_result(error)
        return value

    pipeline = Pipeline()
    stream = pipeline.submissions()
    getattr(stream, way)(close).discard()
    job = pipeline.start_in_thread()
    with job:
        job.submit(1)
        error = found.result(30)
    assert isinstance(error, PipelineError)
    assert "and would wait for itself" in str(error)


def test_block_that_fails_stops_the_thread_and_keeps_its_error() -> None:
    pipeline = Pipeline()
    pipeline.submissions().async_map(sleeping(1000)).discard()
    with pytest.raises(ZeroDivisionError), pipeline.start_in_thread() as job:
        job.submit(1)
        raise ZeroDivisionError
    assert job.state == "stopped"
    assert not job._thread.is_alive()


def test_failed_opening_is_raised_where_it_was_asked_for() -> None:
    def build(value: Any) -> Any:
        return value

    pipeline = Pipeline()
    pipeline.source([1], name="in").map(build, name="build").to([], name="out")
    job = pipeline.start_in_thread(checkpoints=Checkpoints(store=MemoryStore(), restore=7))
    with pytest.raises(Exception, match="checkpoint 7"):
        job.open()
    with pytest.raises(PipelineError, match="runs once"):
        job.open()


def test_who_is_interrupted_while_a_job_starts_gives_it_up() -> None:
    """Ctrl-C, say, while it waits for another job to end that holds the store."""
    happened: list[str] = []

    class Slow(AsyncFunction[int, int]):
        async def open(self) -> None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            await asyncio.sleep(60)
            happened.append("opens")

        async def invoke(self, value: int) -> int:
            return value

        async def close(self) -> None:
            happened.append("closes")

    pipeline = Pipeline()
    pipeline.submissions().async_map(Slow()).discard()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: boom())
    try:
        with pytest.raises(Boom), pipeline.start_in_thread():
            happened.append("runs")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert happened == ["closes"]


def test_who_is_interrupted_while_it_waits_takes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a notebook, say, in which the next cell goes on with the job."""

    def interrupted(done: Any, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)  # and now it is waited for
        boom()

    pipeline = Pipeline()
    pipeline.submissions().results()
    with pipeline.start_in_thread() as job:
        with monkeypatch.context() as patch, pytest.raises(Boom):
            patch.setattr(from_thread, "wait_in_thread", interrupted)
            next(iter(job.results()))
        job.submit(1)
        job.drain()
        assert [*job.results()] == [1]


def test_who_is_interrupted_while_it_waits_hands_nothing_in(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    held, gate = threading.Event(), threading.Event()

    def hold(value: int) -> None:
        seen.append(value)
        held.set()
        gate.wait(60)

    pipeline = Pipeline()
    pipeline.submissions().map(hold).discard()
    with pipeline.start_in_thread() as job:
        job.submit(0)
        assert held.wait(60)
        with monkeypatch.context() as patch, pytest.raises(Boom):
            patch.setattr(tickets, "wait_in_thread", lambda *given: boom())
            job.submit(1)
        gate.set()
    assert seen == [0]


@pytest.mark.parametrize("is_interrupted", [True, False], ids=["interrupted", "no more threads"])
def test_start_that_comes_to_nothing_with_the_thread_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "asyncstream job" and not is_interrupted:
            raise RuntimeError("can't start new thread")
        begin(thread)
        if thread.name == "asyncstream job":
            boom()  # by a signal, while it waits for the thread

    monkeypatch.setattr(threading.Thread, "start", start)
    pipeline = Pipeline()
    pipeline.submissions().discard()
    with pytest.raises((Boom, RuntimeError), match="can't start" if not is_interrupted else None):
        pipeline.start_in_thread().open()
    assert not [thread for thread in threading.enumerate() if thread.name == "asyncstream job"]


def test_thread_keeps_checkpoints_and_goes_on() -> None:
    checkpoints = Checkpoints(store=MemoryStore())
    seen: list[int] = []
    takes = 1000.0

    async def call(value: int) -> int:
        await asyncio.sleep(takes)
        return value

    pipeline = Pipeline()
    pipeline.submissions(name="in").async_map(call, name="call").to(seen, name="out")
    with pipeline.start_in_thread(checkpoints=checkpoints) as job:
        job.submit(1)
        assert job.checkpoint().pipeline == "pipeline"
    assert seen == []
    takes = 0.0
    with pipeline.start_in_thread(checkpoints=checkpoints) as job:
        job.drain(timeout=60)
        assert job.metrics()["out"]["written"] == 1
        job.wait(timeout=60)
    assert seen == [1]


def test_job_in_a_loop_serves_threads_by_from_thread(tmp_path: Path) -> None:
    async def double(value: dict[str, int]) -> dict[str, int]:
        return {"id": value["id"], "n": 2 * value["id"]}

    async def main() -> FromThread:
        pipeline = Pipeline()
        doubled = pipeline.submissions(inbox=tmp_path / "inbox.sqlite", name="in").async_map(
            double, name="double"
        )
        doubled.answers("id", name="answers")
        news = doubled.publish(name="news")
        doubled.results(name="results")
        async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore())) as job:
            threads = job.from_thread
            heard: list[dict[str, int]] = []

            def listen(ready: threading.Event) -> None:
                elements = threads.subscribe(news, filter=lambda value: value["id"] != 2)
                ready.set()
                heard.extend(elements)

            def work() -> None:
                ready = threading.Event()
                listening = threading.Thread(target=listen, args=(ready,))
                listening.start()
                assert ready.wait(60)
                assert threads.submit({"id": 1}, durable=True, id="a") is True
                assert threads.submit({"id": 1}, durable=True, id="a") is False
                assert threads.ask({"id": 2}, timeout=60) == {"id": 2, "n": 4}
                assert next(threads.results()) == {"id": 1, "n": 2}
                assert threads.checkpoint().pipeline == "pipeline"
                assert threads.metrics()["in"]["read"] == 2
                assert (threads.state, threads.error) == ("running", None)
                assert threads.status().state == "running"
                threads.drain(20)
                threads.wait(60)
                listening.join(60)
                assert not listening.is_alive()

            await asyncio.to_thread(work)
            assert heard == [{"id": 1, "n": 2}]
            with pytest.raises(PipelineError, match="would hold the event loop of the job"):
                threads.wait()
        with pytest.raises(JobStopped):
            await asyncio.to_thread(threads.ask, {"id": 3})
        return threads

    threads = asyncio.run(main())
    with pytest.raises(JobStopped, match="the job has ended; its state is 'finished'"):
        threads.wait()
    assert threads.status().state == "finished"


def test_from_thread_asks_for_a_job_that_runs() -> None:
    pipeline = Pipeline()
    pipeline.submissions().discard()
    with pytest.raises(PipelineError, match="not running yet"):
        pipeline.start().from_thread  # noqa: B018 - the look is the test
    with pytest.raises(PipelineError, match="not running yet"):
        pipeline.start_in_thread().ask(1)


def test_thread_that_waits_for_an_answer_hears_of_the_end_of_the_job() -> None:
    called = threading.Event()

    async def call(value: int) -> None:
        called.set()
        await asyncio.sleep(100)

    pipeline = Pipeline()
    pipeline.submissions().async_map(call).answers(lambda value: value)
    told: list[BaseException] = []

    def ask(job: Any) -> None:
        try:
            job.ask(1)
        except JobStopped as error:
            told.append(error)

    with pipeline.start_in_thread() as job:
        asking = threading.Thread(target=ask, args=(job,))
        asking.start()
        assert called.wait(60)
        job.stop(0)
        asking.join(60)
    assert len(told) == 1


def test_answer_that_comes_in_the_moment_of_a_look_at_the_loop_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = Future.result

    def late(self: Future[Any], timeout: float | None = None) -> Any:
        try:
            return result(self, timeout)
        except TimeoutError:
            result(self, 60)  # it is done before who has waited goes on
            raise

    monkeypatch.setattr(tickets, "LOOK_AGAIN", 0.001)
    monkeypatch.setattr(Future, "result", late)
    pipeline = Pipeline()
    pipeline.submissions().async_map(sleeping(0.02)).answers(lambda value: value)
    with pipeline.start_in_thread() as job:
        assert job.ask(1) == 1


class Ended:
    """Of an event loop that ends before it comes to what another thread asks of it, what that thread sees."""

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return True

    def call_soon_threadsafe(self, *arguments: Any, **options: Any) -> None:
        """It takes it, and does nothing any more."""


@pytest.mark.usefixtures("others_gone")
def test_what_the_loop_did_not_come_to_before_its_end_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "LOOK_AGAIN", 0.001)
    pipeline = Pipeline()
    pipeline.submissions().discard()
    job, loop = pipeline.start(), cast(asyncio.AbstractEventLoop, Ended())
    with pytest.raises(JobStopped, match="the job has ended"):
        FromThread(job, lambda: loop).wait()
    with pytest.raises(JobStopped, match="closed under it"):
        Tickets().submit(Submissions(), 1, None, loop, seconds=None)
    gc.collect()  # a coroutine that was not awaited would be told of


@pytest.mark.parametrize("error", [Boom, TimeoutError, CodecError])
def test_whatever_comes_of_handing_in_is_told_to_the_thread(error: type[Exception]) -> None:
    class Failing(Submissions[int]):
        async def submit(self, value: int, **options: Any) -> bool:
            raise error("of the user's own code")

    pipeline = Pipeline()
    pipeline.source(Failing()).discard()
    with pipeline.start_in_thread() as job, pytest.raises(error, match="of the user's own code"):
        job.submit(1, timeout=60)


class Session(AsyncFunction[int, int]):
    async def invoke(self, value: int) -> int:
        return value


class Passing(KeyedProcessFunction[int, int]):
    def process_element(self, value: int, ctx: KeyedContext, out: Emitter[int]) -> None:
        out(value)


def called(numbers: Stream[int], function: Any) -> Stream[Any]:
    return numbers.async_map(function)


def processed(numbers: Stream[int], function: Any) -> Stream[Any]:
    return numbers.key_by(lambda number: number).process(function)


@pytest.mark.parametrize(
    ("use", "kind", "module", "made"),
    [(called, Session, sharing, "_Hold"), (processed, Passing, exclusive, "_Use")],
)
def test_of_two_jobs_that_begin_at_once_in_two_threads_one_has_the_function(
    use: Callable[..., Stream[Any]],
    kind: type,
    module: ModuleType,
    made: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function, make, looks = kind(), getattr(module, made), [1, 2]
    looked, done = threading.Barrier(2), threading.Barrier(2)

    def make_it(*given: Any) -> Any:
        """What is to be noted of who uses it: both have looked then, and neither has noted it."""
        if looks and not isinstance(given[0], Run):  # which has noted its own sources and sinks before
            looks.pop()
            looked.wait(60)
        return make(*given)

    async def run() -> None:
        pipeline = Pipeline()
        use(pipeline.submissions(), function).discard()
        async with pipeline.start():
            await asyncio.to_thread(done.wait, 60)

    def begin(_: int) -> str:
        try:
            asyncio.run(run())
        except PipelineError as error:
            done.wait(60)
            return str(error)
        return "ran"

    monkeypatch.setattr(module, made, make_it)
    with ThreadPoolExecutor(2) as pool:
        outcomes = sorted(pool.map(begin, range(2)))
    assert outcomes.count("ran") == 1
    assert any("make one for each" in outcome for outcome in outcomes)
