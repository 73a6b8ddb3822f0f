"""One trace from the request through the call to the sink, and the metrics, as OpenTelemetry gets them."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import WeakSet

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from asyncstream import Checkpoints, Count, DirectoryStore, Job, Pipeline
from asyncstream.connectors.inbox import Inbox
from asyncstream.errors import MissingExtra, PipelineError
from asyncstream.operators.journey import Journey
from asyncstream.telemetry import instrument, opentelemetry
from tests.runtime.parts import Boom, boom, run

request: ContextVar[str] = ContextVar("request", default="none")


class Recorder:
    """A tracer provider that keeps its spans."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def tree(self) -> dict[str, str | None]:
        """The name of the parent of each span, by its name."""
        names = {
            span.context.span_id: span.name for span in self.exporter.get_finished_spans() if span.context
        }
        return {
            span.name: None if span.parent is None else names[span.parent.span_id]
            for span in self.exporter.get_finished_spans()
        }

    def traces(self) -> int:
        """How many traces there are."""
        return len({span.context.trace_id for span in self.exporter.get_finished_spans() if span.context})


async def ask(value: int) -> int:
    await asyncio.sleep(0.01)
    return value


def orders(function: Any = ask, **options: Any) -> Pipeline:
    pipeline = Pipeline("shop")
    stream = pipeline.submissions(name="orders").map(lambda value: value)
    stream.async_map(function, name="price", **options).filter(lambda value: True).discard(name="archive")
    return pipeline


def submitted(recorder: Recorder, pipeline: Pipeline, given: list[int], **options: Any) -> None:
    """Run a job to which these are submitted, each in a span of its own, as from a handler of a request."""

    async def main() -> None:
        job = instrument(pipeline.start(), tracer_provider=recorder.provider, **options)
        async with job:
            for value in given:
                with recorder.tracer.start_as_current_span(f"POST {value}"):
                    request.set(f"request {value}")
                    await job.submit(value)

    run(main())


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time"])
@pytest.mark.parametrize("isolation", ["pool", "task"])
def test_one_trace_goes_from_the_request_through_the_call_to_the_sink(order: Any, isolation: Any) -> None:
    recorder = Recorder()
    submitted(recorder, orders(order=order, isolation=isolation), [7])
    assert recorder.tree() == {
        "POST 7": None,
        "accept orders": "POST 7",
        "call price": "accept orders",
        "write archive": "accept orders",
    }
    assert recorder.traces() == 1
    attributes = recorder.spans()["call price"].attributes
    assert attributes == {"asyncstream.pipeline": "shop", "asyncstream.step": "price"}


def test_trace_goes_through_calls_that_are_kept_in_order_per_key() -> None:
    recorder = Recorder()
    pipeline = Pipeline("shop")
    keyed = pipeline.submissions(name="orders").key_by(lambda value: 0)
    keyed.async_map(ask, name="price", order="per_key").discard(name="archive")
    submitted(recorder, pipeline, [1, 2, 3])
    assert recorder.traces() == 3
    assert len(recorder.exporter.get_finished_spans()) == 3 * 4


def test_trace_goes_through_several_calls_in_a_row_and_to_every_result() -> None:
    async def twice(value: int) -> list[int]:
        return [value, value]

    recorder = Recorder()
    pipeline = Pipeline("shop")
    stream = pipeline.submissions(name="orders").async_flat_map(twice, name="split")
    stream.async_map(ask, name="price").discard(name="archive")
    submitted(recorder, pipeline, [1])
    assert recorder.traces() == 1
    assert {"call split", "call price", "write archive"} <= set(recorder.tree())


def test_call_is_made_in_the_context_of_who_submitted_its_element() -> None:
    seen: dict[int, tuple[str, str]] = {}

    async def look(value: int) -> int:
        await asyncio.sleep(0.01)
        span: Any = trace.get_current_span()
        seen[value] = request.get(), span.name
        request.set("spoilt")
        return value

    submitted(Recorder(), orders(look), [1, 2, 3])
    assert seen == {value: (f"request {value}", "call price") for value in (1, 2, 3)}


def test_elements_that_nobody_follows_see_nothing_of_others() -> None:
    seen: list[str] = []

    async def look(value: int) -> int:
        await asyncio.sleep(0.01)
        seen.append(request.get())
        return value

    async def main() -> None:
        recorder = Recorder()
        job = instrument(orders(look).start(), tracer_provider=recorder.provider, sample=0)
        async with job:
            request.set("mine")
            for value in range(5):
                await job.submit(value)
        assert recorder.spans() == {}

    run(main())
    assert seen == ["none"] * 5


def test_trace_of_a_request_that_is_not_sampled_is_not_recorded() -> None:
    recorder = Recorder(sampler=ALWAYS_OFF)
    submitted(recorder, orders(), [1])
    assert recorder.spans() == {}


def test_call_that_fails_is_marked_without_what_it_says() -> None:
    async def fail(value: int) -> int:
        await asyncio.sleep(0.01)
        result: int = boom(value)
        return result

    recorder = Recorder()
    submitted(recorder, orders(fail, on_error="skip"), [1])
    span = recorder.spans()["call price"]
    assert not span.status.is_ok
    assert span.attributes is not None
    assert span.attributes["error.type"] == Boom.__qualname__
    assert "write archive" not in recorder.tree()
    assert "purpose" not in span.to_json()


def test_call_that_times_out_ends_its_span() -> None:
    async def hang(value: int) -> int:
        await asyncio.sleep(1_000)
        return value

    recorder = Recorder()
    submitted(recorder, orders(hang, timeout=1, on_timeout="skip"), [1])
    assert not recorder.spans()["call price"].status.is_ok


def test_trace_goes_through_an_inbox_on_the_disk(tmp_path: Path) -> None:
    async def main(recorder: Recorder) -> None:
        pipeline = Pipeline("shop")
        stream = pipeline.submissions(name="orders", inbox=Inbox(tmp_path / "inbox.sqlite"))
        stream.async_map(ask, name="price").discard(name="archive")
        kept = Checkpoints(store=DirectoryStore(tmp_path / "kept"))
        job = instrument(pipeline.start(checkpoints=kept), tracer_provider=recorder.provider)
        async with job:
            with recorder.tracer.start_as_current_span("POST"):
                await job.submit(1, id="one")
            await job.drain()

    recorder = Recorder()
    asyncio.run(main(recorder))
    assert recorder.traces() == 1
    assert set(recorder.tree()) == {"POST", "accept orders", "call price", "write archive"}


def test_snapshot_of_elements_that_are_followed_is_that_of_the_elements() -> None:
    async def main() -> Any:
        async def hang(value: int) -> int:
            await asyncio.sleep(1_000 if value == 1 else 0.01)
            return value

        job = instrument(orders(hang, concurrency=2, buffer=2).start(), tracer_provider=Recorder().provider)
        async with job:
            for value in (1, 2, 3):
                await job.submit(value)
            await asyncio.sleep(1)
            return (await job.stop(0)).operators["price"]

    assert run(main()) == [["call", 1, None], ["finished", 2, None, [2]], ["call", 3, None]]


def test_elements_of_other_sources_are_followed_now_and_then() -> None:
    async def main() -> Recorder:
        recorder = Recorder()
        pipeline = Pipeline("shop")
        pipeline.source(range(1_000), name="orders").async_map(ask, name="price").discard(name="archive")
        async with instrument(pipeline.start(), tracer_provider=recorder.provider) as job:
            await job.wait()
        return recorder

    recorder = run(main())
    assert 1 <= recorder.traces() <= 3
    assert recorder.tree() == {
        "accept orders": None,
        "call price": "accept orders",
        "write archive": "accept orders",
    }


def test_what_a_followed_element_sets_off_belongs_to_its_journey() -> None:
    async def main() -> Recorder:
        recorder = Recorder()
        pipeline = Pipeline("shop")
        keyed = pipeline.submissions(name="orders").key_by(lambda value: 0)
        keyed.count_window(2).aggregate(n=Count()).discard(name="archive")
        async with instrument(pipeline.start(), tracer_provider=recorder.provider) as job:
            for value in (1, 2):
                with recorder.tracer.start_as_current_span(f"POST {value}"):
                    await job.submit(value)
                await asyncio.sleep(1)
        return recorder

    recorder = run(main())
    writes = [span for span in recorder.exporter.get_finished_spans() if span.name == "write archive"]
    (write,) = writes
    second = recorder.spans()["POST 2"]
    assert write.context is not None
    assert second.context is not None
    assert write.context.trace_id == second.context.trace_id


# ------------------------------------------------------------------ latency from end to end


def test_end_to_end_latency_is_that_of_elements_followed_to_the_sink() -> None:
    async def main() -> tuple[Any, Any]:
        async def slow(value: int) -> int:
            await asyncio.sleep(2)
            return value

        job = orders(slow).start()
        async with job:
            await job.submit(1)
            await asyncio.sleep(5)
            status = job.status().step("archive").latency
            (metric,) = [one for one in job.measure() if one.name == "asyncstream.end_to_end.duration"]
        return status, metric.points[0].value

    latency, distribution = run(main())
    assert latency.calls == distribution.count == 1
    assert distribution.total == pytest.approx(2, abs=0.01)


def test_of_many_elements_some_are_followed() -> None:
    async def main() -> int:
        pipeline = Pipeline()
        pipeline.submissions(name="orders").discard(name="archive")
        async with pipeline.start() as job:
            for value in range(1_000):
                await job.submit(value)
                await asyncio.sleep(0.001)
            latency = job.status().step("archive").latency
            assert latency is not None
            return latency.calls

    assert 9 <= run(main()) <= 12


# ------------------------------------------------------------------ metrics


class Reading:
    """A meter provider, and what its reader sees."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self._reader])

    def points(self) -> Iterator[tuple[str, str, Mapping[str, Any], float]]:
        data: Any = self._reader.get_metrics_data()
        for resource in () if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        yield metric.name, metric.unit, dict(point.attributes), point.value


def test_metrics_are_read_by_a_meter_provider() -> None:
    async def main(reading: Reading) -> None:
        for name in ("one", "two"):
            pipeline = Pipeline(name)
            pipeline.source(range(10), name="orders").async_map(ask, name="price").discard(name="archive")
            job = instrument(pipeline.start(), meter_provider=reading.provider)
            async with job:
                await job.wait()
            jobs.append(job)

    jobs: list[Job] = []
    reading = Reading()
    run(main(reading))
    points = list(reading.points())

    def values(name: str, **labels: str) -> list[float]:
        wanted = {f"asyncstream.{key}": value for key, value in labels.items()}
        return [
            value
            for metric, _, attributes, value in points
            if metric == name and wanted.items() <= attributes.items()
        ]

    assert values("asyncstream.elements.read", pipeline="one", step="orders") == [10]
    assert values("asyncstream.elements.read", pipeline="two", step="orders") == [10]
    assert values("asyncstream.call.duration.count", pipeline="one", outcome="success") == [10]
    assert values("asyncstream.call.duration.sum", pipeline="one", outcome="success") == [
        pytest.approx(0.1, abs=0.02)
    ]
    assert values("asyncstream.call.duration.bucket", pipeline="one", outcome="success", le="+Inf") == [10]
    assert values("asyncstream.call.duration.bucket", pipeline="one", outcome="success", le="0.005") == [0]
    assert ("asyncstream.call.duration.sum", "s") in {(name, unit) for name, unit, _, _ in points}


def test_job_of_another_thread_that_begins_meanwhile_is_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []

    def instrumented(name: str) -> None:
        pipeline = Pipeline(name)
        pipeline.source(range(10), name="orders").discard()
        jobs.append(instrument(pipeline.start(), meter_provider=reading.provider))

    class Slow(opentelemetry._Observed):
        def __init__(self) -> None:
            super().__init__()
            monkeypatch.undo()
            instrumented("two")

    async def main() -> None:
        for job in jobs:
            async with job:
                await job.wait()

    reading = Reading()
    monkeypatch.setattr(opentelemetry, "_Observed", Slow)
    instrumented("one")
    run(main())
    shown = [labels for metric, _, labels, _ in reading.points() if metric == "asyncstream.elements.read"]
    assert {labels["asyncstream.pipeline"] for labels in shown} == {"one", "two"}


def test_job_may_begin_in_another_thread_while_jobs_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []
    threads: list[Thread] = []

    def instrumented(name: str) -> None:
        pipeline = Pipeline(name)
        pipeline.source(range(10), name="orders").discard()
        jobs.append(instrument(pipeline.start(), meter_provider=reading.provider))

    class Interrupted(WeakSet[Job]):
        def __iter__(self) -> Iterator[Job]:
            for job in super().__iter__():
                if not threads:
                    threads.append(Thread(target=instrumented, args=("two",)))
                    threads[0].start()
                    threads[0].join(0.5)  # it may have to wait for the end of this
                yield job

    reading = Reading()
    monkeypatch.setattr(opentelemetry, "WeakSet", Interrupted)
    instrumented("one")
    opentelemetry._observed[reading.provider]._measured("asyncstream.elements.read")  # raises nothing
    threads[0].join(30)
    assert len(jobs) == 2


@pytest.mark.usefixtures("others_gone")
def test_metrics_of_a_job_that_is_gone_are_not_shown() -> None:
    async def main(reading: Reading) -> None:
        async with instrument(orders().start(), meter_provider=reading.provider):
            pass

    reading = Reading()
    run(main(reading))
    gc.collect()
    assert list(reading.points()) == []


def test_wrong_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineError, match="sample: expected a number from 0 to 1"):
        instrument(orders().start(), sample=2)
    wrongs: list[dict[str, Any]] = [
        {"sample": True},
        {"meter_provider": ""},
        {"tracer_provider": TracerProvider},
    ]
    for wrong in wrongs:
        with pytest.raises(PipelineError, match=f"^{next(iter(wrong))}: expected a "):
            instrument(orders().start(), **wrong)
    with pytest.raises(PipelineError, match="tracer: expected a Tracer"):
        orders().start().trace("tracer")  # type: ignore[arg-type]

    async def main() -> None:
        async with orders().start() as job:
            with pytest.raises(PipelineError, match="the job runs already"):
                instrument(job)

    run(main())
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match=r"asyncstream\[opentelemetry\]"):
        instrument(orders().start())


def test_journey_is_told_from_others_that_began_with_it() -> None:
    assert Journey(1.0) != Journey(1.0)
