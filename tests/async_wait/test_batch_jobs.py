"""Jobs at a provider: formed, kept, submitted once, asked for, and gone on with after a crash."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    AsyncFunction,
    Checkpoints,
    Count,
    MemoryStore,
    Pipeline,
    Stream,
    TumblingWindows,
)
from asyncstream.errors import PipelineError, UserFunctionError
from asyncstream.operators.functions import FailedCall
from asyncstream.runtime.spark.compatibility import refuse_unknown
from asyncstream.testing.loop import run_virtual
from tests.guards.services import now_ms

pytestmark = pytest.mark.usefixtures("virtual_time")


class Provider:
    """
    Doubles numbers in jobs that take `takes(first element)` seconds.

    Attributes:
        submitted: (time, key, elements) of each submission.
        jobs: what is known of each job, by its key.
    """

    def __init__(self, takes: Callable[[int], float] = lambda first: 100.0) -> None:
        self.takes = takes
        self.submitted: list[tuple[int, str, list[int]]] = []
        self.jobs: dict[str, tuple[float, list[int]]] = {}
        self.polls = 0
        self.delay = 0.0
        self.wrong: set[int] = set()

    async def submit(self, elements: list[int], key: str) -> str:
        self.submitted.append((now_ms(), key, elements))
        done_at = asyncio.get_running_loop().time() + self.takes(elements[0])
        self.jobs.setdefault(key, (done_at, elements))
        if self.delay:
            await asyncio.sleep(self.delay)
        return key

    async def poll(self, job: str) -> bool:
        self.polls += 1
        return self.jobs[job][0] <= asyncio.get_running_loop().time()

    async def fetch(self, job: str) -> list[Any]:
        answers = [2 * number for number in self.jobs[job][1]]
        return [ValueError(answer) if answer // 2 in self.wrong else answer for answer in answers]

    def step(self, stream: Stream[int], size: int = 10, **options: Any) -> Stream[Any]:
        given: dict[str, Any] = {"size": size, "every": 10, "name": "batch"} | options
        return stream.async_batch(self.submit, self.poll, self.fetch, **given)


def run(provider: Provider, elements: Any, found: list[Any], **options: Any) -> None:
    pipeline = Pipeline("doubles")
    provider.step(pipeline.source(elements, name="numbers"), **options).to(found, name="found")
    run_virtual(pipeline.run())


@pytest.mark.parametrize("fails", [False, True])
def test_submit_may_take_its_list_apart(fails: bool) -> None:
    class TakesApart(Provider):
        async def submit(self, elements: list[int], key: str) -> str:
            await super().submit(list(elements), key)
            elements.clear()
            if fails:
                raise ConnectionError("refused")
            return key

    found: list[int] = []
    run(TakesApart(), range(25), found, on_error="skip")
    assert found == ([] if fails else [2 * number for number in range(25)])


def test_elements_go_in_jobs_of_their_size_and_come_back_in_order() -> None:
    provider, found = Provider(takes=lambda first: 100.0 - first), list[int]()
    run(provider, range(25), found)
    assert found == [2 * number for number in range(25)]
    assert [elements for _, _, elements in provider.submitted] == [
        list(range(10)),
        list(range(10, 20)),
        list(range(20, 25)),
    ]
    assert len({key for _, key, _ in provider.submitted}) == 3


def test_results_leave_as_jobs_are_done_where_order_says_so() -> None:
    provider, found = Provider(takes=lambda first: 100.0 - first), list[int]()
    run(provider, range(30), found, order="unordered")
    assert found == [2 * n for part in (range(20, 30), range(10, 20), range(10)) for n in part]


def test_a_job_is_asked_for_now_and_then() -> None:
    provider = Provider()
    run(provider, range(3), [])
    assert provider.polls == 10


def test_what_is_too_little_for_a_job_goes_after_a_while() -> None:
    async def main() -> None:
        provider, found = Provider(), list[int]()
        pipeline = Pipeline("doubles")
        provider.step(pipeline.submissions(), wait=5).to(found)
        async with pipeline.start() as job:
            await job.submit(1)
            await asyncio.sleep(3)
            await job.submit(2)
            await asyncio.sleep(1)
            assert provider.submitted == []
            await asyncio.sleep(200)
            assert [elements for _, _, elements in provider.submitted] == [[1, 2]]
            assert provider.submitted[0][0] == 5_000
            assert found == [2, 4]
            await job.drain()

    run_virtual(main())


def test_what_is_enough_for_a_job_goes_at_once_and_the_time_of_the_next_begins_anew() -> None:
    async def main() -> None:
        provider = Provider()
        pipeline = Pipeline("doubles")
        provider.step(pipeline.submissions(), size=2, wait=50).to([])
        async with pipeline.start() as job:
            await job.submit(1)
            await asyncio.sleep(3)
            await job.submit(2)
            await asyncio.sleep(1)
            await job.submit(3)
            await asyncio.sleep(100)
            assert [(at, elements) for at, _, elements in provider.submitted] == [
                (3_000, [1, 2]),
                (54_000, [3]),
            ]
            await job.drain()

    run_virtual(main())


def test_a_source_is_read_no_further_while_jobs_are_under_way() -> None:
    async def main() -> None:
        provider, read = Provider(), list[int]()

        async def numbers() -> AsyncIterator[int]:
            for number in range(10_000):
                read.append(number)
                yield number
                await asyncio.sleep(0)

        pipeline = Pipeline("doubles")
        provider.step(pipeline.source(numbers()), size=10, jobs=2).discard()
        async with pipeline.start() as job:
            await asyncio.sleep(50)
            assert len(read) < 100
            await job.stop()

    run_virtual(main())


def test_no_more_jobs_are_under_way_than_asked_for_and_the_rest_waits() -> None:
    async def main() -> None:
        provider, found = Provider(), list[int]()
        pipeline = Pipeline("doubles")
        provider.step(pipeline.source(range(1000), name="numbers"), size=10, jobs=2).to(found)
        async with pipeline.start() as job:
            await asyncio.sleep(50)
            assert len(provider.submitted) == 2
            counts = job.metrics()["batch"]
            assert counts["jobs_parked"] == 2
            assert counts["waiting"] <= 10 * 300  # bounded: a source gives its elements in batches
            await job.wait()
        assert len(found) == 1000

    run_virtual(main())


def test_watermarks_stay_behind_the_elements_before_them() -> None:
    provider, counts, late = Provider(takes=lambda first: 1000.0 - first), list[Any](), list[int]()
    pipeline = Pipeline("doubles")
    numbers = pipeline.source(range(40)).event_time(lambda n: n * 1000, AscendingTimestamps())
    windows = provider.step(numbers, order="unordered").window_all(TumblingWindows(5))
    results = windows.aggregate(n=Count())
    results.to(counts)
    results.late.to(late)
    run_virtual(pipeline.run())
    assert [result.value["n"] for result in counts] == [5] * 8
    assert late == []


# ------------------------------------------------------------------ errors


def test_an_answer_that_is_an_exception_is_the_error_of_its_element() -> None:
    provider, found, failed = Provider(), list[int](), list[FailedCall]()
    provider.wrong = {3, 14}
    pipeline = Pipeline("doubles")
    results = provider.step(pipeline.source(range(20), name="numbers"), on_error="route")
    results.to(found)
    results.failed.to(failed)
    run_virtual(pipeline.run())
    assert found == [2 * number for number in range(20) if number not in provider.wrong]
    assert [(one.value, type(one.error)) for one in failed] == [(3, ValueError), (14, ValueError)]


def test_a_job_that_fails_is_the_error_of_all_its_elements() -> None:
    provider, found = Provider(), list[int]()

    async def poll(job: str) -> bool:
        if provider.jobs[job][1][0] == 10:
            raise OSError("expired")
        return await Provider.poll(provider, job)

    provider.poll = poll  # type: ignore[method-assign]
    run(provider, range(30), found, on_error="skip")
    assert found == [2 * number for number in range(30) if not 10 <= number < 20]
    with pytest.raises(UserFunctionError, match="expired"):
        run(provider, range(30), [])


@pytest.mark.parametrize("on_error", ["fail", "skip", "route"])
def test_a_cancellation_that_is_not_ours_fails_the_pipeline(on_error: str) -> None:
    class Cancelling(Provider):
        async def submit(self, elements: list[int], key: str) -> str:
            raise asyncio.CancelledError

    pipeline = Pipeline("doubles")
    results = Cancelling().step(pipeline.source(range(3)), on_error=on_error)
    results.discard()
    if on_error == "route":
        results.failed.discard()
    with pytest.raises(UserFunctionError, match="CancelledError"):
        run_virtual(pipeline.run())


async def test_a_job_over_an_element_of_which_the_pipeline_fails_stays_whole_in_its_snapshot() -> None:
    """Its elements before that one had left it: for those that were left there were too many answers."""
    provider, found = Provider(), list[int]()

    def pipeline() -> Pipeline:
        made = Pipeline("doubles")
        provider.step(made.source(range(5), name="numbers"), size=5).to(found, name="found")
        return made

    provider.wrong = {3}
    job = pipeline().start()
    with pytest.raises(UserFunctionError, match="on element 3"):
        async with job:
            await job.wait()
    provider.wrong = set()
    async with pipeline().start(snapshot=job.snapshot()) as later:
        await later.drain()
    assert found == [0, 2, 4, 6, 8]
    assert len(provider.submitted) == 1


def test_too_few_answers_are_refused() -> None:
    provider = Provider()

    async def fetch(job: str) -> list[int]:
        return [1]

    provider.fetch = fetch  # type: ignore[method-assign]
    with pytest.raises(UserFunctionError, match="1 answers for a job of 3 elements"):
        run(provider, range(3), [])


@pytest.mark.parametrize("answers", ["abc", b"abc", {"a": 1, "b": 2, "c": 3}, {1, 2, 3}], ids=repr)
def test_what_is_no_list_of_answers_is_refused(answers: Any) -> None:
    provider = Provider()

    async def fetch(job: str) -> Any:
        return answers

    provider.fetch = fetch  # type: ignore[method-assign]
    with pytest.raises(UserFunctionError, match="fetch must give a list of answers in the order"):
        run(provider, range(3), [])


@pytest.mark.parametrize("fails", ["poll", "fetch"])
def test_each_function_is_closed_though_the_other_fails_to(fails: str) -> None:
    class Asking(AsyncFunction[str, Any]):
        def __init__(self, name: str, ask: Callable[[str], Awaitable[Any]]) -> None:
            self.name, self.ask = name, ask

        async def invoke(self, job: str) -> Any:
            return await self.ask(job)

        async def close(self) -> None:
            closed.append(self.name)
            if self.name == fails:
                await asyncio.sleep(1e9)

    provider, closed = Provider(), list[str]()
    pipeline = Pipeline("doubles")
    poll, fetch = Asking("poll", provider.poll), Asking("fetch", provider.fetch)
    pipeline.source([1]).async_batch(provider.submit, poll, fetch, size=1, every=10, name="batch").to([])
    with pytest.raises(UserFunctionError, match=r"step 'batch'.*when it was closed"):
        run_virtual(pipeline.run())
    assert sorted(closed) == ["fetch", "poll"]


# ------------------------------------------------------------------ going on


def test_a_job_is_submitted_when_a_checkpoint_has_it_and_then_parked_in_another() -> None:
    async def main() -> None:
        provider, found, store = Provider(), list[int](), MemoryStore()
        checkpoints = Checkpoints(store=store, every=3600)

        def build() -> Pipeline:
            pipeline = Pipeline("doubles")
            provider.step(pipeline.source(range(25), name="numbers")).to(found, name="found")
            return pipeline

        job = build().start(checkpoints=checkpoints)
        async with job:
            await asyncio.sleep(30)
            status = job.status().checkpoint
            assert status is not None
            assert status.number >= 3  # at the start, with the jobs, with what they are known by
            assert len(provider.submitted) == 3
            await cut_off(job)
        async with build().start(checkpoints=checkpoints) as again:
            await again.wait()
        assert len(provider.submitted) == 3
        assert found == [2 * number for number in range(25)]

    run_virtual(main())


def test_what_may_have_been_submitted_is_submitted_with_the_same_key() -> None:
    async def main() -> None:
        provider, found, store = Provider(), list[int](), MemoryStore()
        provider.delay = 5.0
        checkpoints = Checkpoints(store=store, every=3600)

        def build() -> Pipeline:
            pipeline = Pipeline("doubles")
            provider.step(pipeline.source(range(10), name="numbers")).to(found, name="found")
            return pipeline

        async with build().start(checkpoints=checkpoints) as job:
            await asyncio.sleep(2)
            await cut_off(job)
        async with build().start(checkpoints=checkpoints) as again:
            await again.wait()
        (_, first, elements), (_, second, same) = provider.submitted
        assert (first, elements) == (second, same)
        assert found == [2 * number for number in range(10)]

    run_virtual(main())


async def cut_off(job: Any) -> None:
    """End a job as a crash would: nothing of it is kept from now on."""
    job._run.checkpointer.begin_no_more()
    await job.stop()


def test_jobs_and_what_is_behind_them_see_nothing_of_the_context_of_others() -> None:
    """Each was formed in the context of the one before, and had what all those before it had left there."""
    trace: ContextVar[tuple[int, ...]] = ContextVar("trace", default=())
    seen: list[tuple[int, ...]] = []

    class Traced(Provider):
        async def submit(self, elements: list[int], key: str) -> str:
            seen.append(trace.get())
            trace.set((*trace.get(), *elements))
            return await super().submit(elements, key)

    pipeline = Pipeline("doubles")
    doubled = Traced().step(pipeline.source(range(5)), size=1, jobs=1)
    doubled.map(lambda number: seen.append(trace.get())).discard()
    run_virtual(pipeline.run())
    assert seen == [()] * 10


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no eager tasks")
def test_a_job_that_is_done_at_once_is_gone_also_if_tasks_are_eager() -> None:
    """It was noted as running after it had ended, and took the place of another for ever."""

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        provider, found = Provider(), list[int]()
        pipeline = Pipeline("doubles")
        provider.step(pipeline.source(range(2), name="numbers"), size=1, jobs=1).to(found, name="found")
        async with pipeline.start() as job:
            await asyncio.sleep(5)
            snapshot = await job.stop()
        provider.takes = lambda first: 0.0
        await asyncio.sleep(200)
        async with asyncio.timeout(1000), pipeline.start(snapshot=snapshot) as job:
            await job.wait()
        assert found == [0, 2]

    run_virtual(main())


def test_a_stopped_job_goes_on_from_its_snapshot() -> None:
    async def main() -> None:
        provider, found = Provider(takes=lambda first: 1000.0 - first), list[int]()

        def build() -> Pipeline:
            pipeline = Pipeline("doubles")
            provider.step(pipeline.source(range(25), name="numbers"), order="unordered").to(
                found, name="found"
            )
            return pipeline

        async with build().start() as job:
            await asyncio.sleep(985)  # one of three is done
            snapshot = await job.stop()
        assert found == [2 * number for number in range(20, 25)]
        async with build().start(snapshot=snapshot) as again:
            await again.wait()
        assert sorted(found) == [2 * number for number in range(25)]
        assert len(provider.submitted) == 3

    run_virtual(main())


@pytest.mark.parametrize(("other", "jobs_done"), [(0, 0), (8, 1)])
def test_a_stop_waits_for_no_job_and_begins_none_while_it_waits_for_others(
    other: int, jobs_done: int
) -> None:
    async def main() -> None:
        provider, found = Provider(takes=lambda first: 4), list[int]()
        pipeline = Pipeline("doubles")
        provider.step(pipeline.source(range(25), name="numbers"), jobs=1, every=1).to(found)
        pipeline.source([other]).async_map(asyncio.sleep).discard()
        async with pipeline.start() as job:
            await asyncio.sleep(2)
            await job.stop(grace=20)
        assert asyncio.get_running_loop().time() == pytest.approx(max(2, other), abs=0.5)
        assert len(provider.submitted) == 1
        assert found == [2 * number for number in range(10 * jobs_done)]

    run_virtual(main())


def test_watermarks_stay_behind_the_elements_before_them_over_a_stop() -> None:
    provider, counts, late = Provider(takes=lambda first: 100.0 - first), list[Any](), list[int]()

    def build() -> Pipeline:
        pipeline = Pipeline("doubles")
        source = pipeline.source(range(40), name="numbers")
        numbers = source.event_time(lambda n: n * 1000, AscendingTimestamps(), name="times")
        jobs = provider.step(numbers, order="unordered", jobs=2)
        results = jobs.window_all(TumblingWindows(5)).aggregate(name="windows", n=Count())
        results.to(counts, name="counts")
        results.late.to(late, name="late")
        return pipeline

    async def main() -> None:
        async with build().start() as job:
            await asyncio.sleep(5)
            snapshot = await job.stop()
        assert counts == []
        async with build().start(snapshot=snapshot) as again:
            await asyncio.sleep(110)
            assert len(counts) == 3  # of the elements of two jobs; the fourth waits for what comes next
            await again.wait()

    run_virtual(main())
    assert [result.value["n"] for result in counts] == [5] * 8
    assert late == []


@pytest.mark.parametrize(
    "options",
    [{"size": 0}, {"every": 0}, {"jobs": 0}, {"order": "per_key"}, {"on_error": "ignore"}, {"wait": -1}],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError):
        Provider().step(Pipeline("p").source([1]), **options)


def test_functions_must_be_async() -> None:
    stream, provider = Pipeline("p").source([1]), Provider()
    with pytest.raises(PipelineError, match="submit"):
        stream.async_batch(print, provider.poll, provider.fetch, size=1)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="fetch"):
        stream.async_batch(provider.submit, provider.poll, print, size=1)  # type: ignore[arg-type]


def test_it_is_refused_on_spark_before_anything_runs() -> None:
    pipeline = Pipeline("doubles")
    Provider().step(pipeline.source([1], name="numbers")).to([])
    with pytest.raises(PipelineError, match="'batch' has jobs at a provider"):
        refuse_unknown(pipeline._graph, streaming=True, processing_time=False)
