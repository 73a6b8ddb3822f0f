"""The metrics of a job as Prometheus reads them."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from asyncstream import (
    AscendingTimestamps,
    AsyncFunction,
    Checkpoints,
    Count,
    Job,
    MemoryStore,
    Pipeline,
    PipelineError,
    Source,
    TumblingWindows,
)
from asyncstream.errors import MissingExtra
from asyncstream.guards import cached, circuit_breaker, rate_limit, retry, single_flight
from asyncstream.metrics import Metric, Point
from asyncstream.operators.functions import figures_of
from asyncstream.runtime.aio.measuring import CATALOG
from asyncstream.telemetry import JobCollector, exposition
from asyncstream.telemetry.prometheus import UNITS
from tests.runtime.parts import run
from tests.telemetry.scrape import complaints, samples


def test_metrics_of_the_documents_are_metrics_that_there_are() -> None:
    known = set()
    for told in CATALOG:
        name = "_".join([told.name.replace(".", "_"), *filter(None, [UNITS.get(told.unit)])])
        known |= {
            "counter": {f"{name}_total"},
            "gauge": {name},
            "histogram": {f"{name}_bucket", f"{name}_sum", f"{name}_count"},
        }[told.kind]
    text = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    named = set(re.findall(r"asyncstream_\w+", text))
    assert len(named) > 10
    assert named <= known


async def ask(value: int) -> int:
    await asyncio.sleep(0.02)
    if value % 10 == 9:
        raise ConnectionError("down")
    return value


def everything(name: str = "orders") -> Pipeline:
    """A pipeline that has something to say of everything."""
    guarded = cached(
        single_flight(
            retry(circuit_breaker(rate_limit(ask, rate=1000)), attempts=2, wait_initial=0.01, on=ValueError)
        ),
        ttl=60,
    )
    pipeline = Pipeline(name)
    stream = pipeline.source(list(range(50)), name='in "quotes" \\').event_time(
        lambda value: value * 1000, AscendingTimestamps(), name="time"
    )
    asked = stream.async_map(guarded, name="ask", timeout=5, on_error="skip")
    asked.key_by(lambda value: value % 3).window(TumblingWindows(10)).aggregate(
        n=Count(), name="count"
    ).discard(name="out")
    return pipeline


def scraped(*pipelines: Pipeline, **options: Any) -> str:
    async def main() -> str:
        jobs: list[Job] = []
        for pipeline in pipelines:
            job = pipeline.start(checkpoints=Checkpoints(store=MemoryStore()))
            async with job:
                await job.wait()
            jobs.append(job)
        body, kind = exposition(*jobs, **options)
        assert kind.startswith("text/plain; version=")
        return body.decode()

    return run(main())


def test_scrape_keeps_to_the_format_and_the_conventions() -> None:
    assert list(complaints(scraped(everything()))) == []


def test_scrape_has_what_was_counted_and_timed() -> None:
    found = samples(scraped(everything()))

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset({"pipeline": "orders", **labels}.items())]

    assert value("asyncstream_elements_read_total", step='in "quotes" \\') == 50
    assert value("asyncstream_elements_skipped_total", step="ask") == 5
    assert value("asyncstream_call_duration_seconds_count", step="ask", outcome="success") == 45
    assert value("asyncstream_call_duration_seconds_count", step="ask", outcome="error") == 5
    assert value("asyncstream_call_duration_seconds_sum", step="ask", outcome="success") == pytest.approx(
        45 * 0.02, rel=0.05
    )
    assert value("asyncstream_call_attempts_bucket", step="ask", le="1.0") == 50
    assert value("asyncstream_cache_misses_total", step="ask") == 50
    assert value("asyncstream_checkpoint_duration_seconds_count") >= 1
    assert value("asyncstream_checkpoint_size_bytes_sum") > 0
    assert value("asyncstream_job_state", state="finished") == 1
    assert value("asyncstream_job_state", state="failed") == 0
    assert value("asyncstream_step_stuck", step="ask") == 0
    assert value("asyncstream_elements_waiting", step="ask", place="call") == 0
    assert (
        "asyncstream_watermark_lag_seconds",
        frozenset({("pipeline", "orders"), ("step", "count")}),
    ) in found


def test_several_jobs_share_families_and_are_told_apart_by_their_pipeline() -> None:
    text = scraped(everything("one"), everything("two"))
    assert list(complaints(text)) == []
    for pipeline in ("one", "two"):
        labels = frozenset({("pipeline", pipeline), ("step", 'in "quotes" \\')})
        assert samples(text)["asyncstream_elements_read_total", labels] == 50


def test_job_that_is_given_twice_is_shown_once() -> None:
    job = Wrong(Metric("made.wrong", "gauge", "1", "", (Point({"a": "b"}, 1),)))
    assert exposition(job, job) == exposition(job)


def test_jobs_of_one_name_are_refused_for_they_would_share_a_series() -> None:
    with pytest.raises(PipelineError, match=r"jobs: .* different names, got \['one', 'one'\]"):
        scraped(everything("one"), everything("one"))


def test_what_a_function_of_the_users_counts_is_told_by_its_name() -> None:
    class Counting(AsyncFunction[int, int]):
        async def invoke(self, value: int) -> int:
            return value

        def metrics(self) -> dict[str, int]:
            return {"weird name!": 7}

    pipeline = Pipeline("mine")
    pipeline.source([1], name="in").async_map(Counting(), name="ask").discard()
    text = scraped(pipeline)
    assert list(complaints(text)) == []
    labels = {"pipeline": "mine", "step": "ask", "name": "weird name!"}
    assert samples(text)["asyncstream_function_value", frozenset(labels.items())] == 7


class Odd(AsyncFunction[int, int]):
    def __init__(self, gives: Any) -> None:
        self.gives = gives

    async def invoke(self, value: int) -> int:
        return value

    def metrics(self) -> dict[str, int]:
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("gives", "told"),
    [
        ({"good": np.int64(7)}, True),
        ({"good": np.float32(7)}, True),
        ({"good": 7, "bad": "many"}, True),
        ({"good": 7, "bad": None}, True),
        ({"good": 7, "\ud83d": 1}, True),
        ({"good": 7, 3: 1}, True),
        ([("good", 7)], False),
        (None, False),
        (OSError("the pool is closed"), False),
    ],
)
def test_figures_that_are_none_are_left_out_and_told_once(
    gives: Any, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> tuple[str, dict[str, Any]]:
        pipeline = Pipeline("mine")
        pipeline.source([1], name="in").async_map(retry(Odd(gives)), name="ask").discard()
        async with pipeline.start() as job:
            await job.wait()
            return exposition(job)[0].decode(), job.status().to_dict()

    text, status = run(main())
    assert list(complaints(text)) == []
    labels = frozenset({("pipeline", "mine"), ("step", "ask"), ("name", "good")})
    assert samples(text).get(("asyncstream_function_value", labels)) == (7 if told else None)
    assert orjson.loads(orjson.dumps(status))["steps"][1]["counts"].get("good") == (7 if told else None)
    warned = [record for record in caplog.records if "metrics() of Odd" in record.message]
    assert len(warned) == (set(gives) != {"good"} if isinstance(gives, dict) else 1)


def test_figures_of_what_has_slots_only_are_left_out_too() -> None:
    class Bare:
        __slots__ = ()

        def metrics(self) -> None:
            raise OSError("the pool is closed")

    assert figures_of(Bare()) == {}


def test_each_method_that_gives_wrong_figures_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    class Naming(Odd):
        def counter_names(self) -> tuple[str, ...]:
            raise OSError("closed")

    pipeline = Pipeline("mine")
    pipeline.source([1], name="in").async_map(retry(Naming(OSError("closed"))), name="ask").discard()
    scraped(pipeline)
    for method in ("metrics", "counter_names"):
        assert len([record for record in caplog.records if f"{method}() of Naming" in record.message]) == 1


@pytest.mark.parametrize(("gives", "told"), [(np.int64(7), 7), ("many", 0), (OSError("closed"), 0)])
def test_a_source_that_cannot_say_what_it_holds_does_not_fail_who_looks(
    gives: Any, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Telling(Source[int]):
        async def read(self) -> None:
            await asyncio.Event().wait()

        def unread(self) -> int:
            if isinstance(gives, Exception):
                raise gives
            return gives  # type: ignore[no-any-return]

    async def main() -> tuple[str, dict[str, Any]]:
        pipeline = Pipeline("mine")
        pipeline.source(Telling(), name="in").discard()
        async with pipeline.start() as job:
            await asyncio.sleep(0)
            found = exposition(job)[0].decode(), job.status().to_dict()
            await job.stop()
            return found

    text, status = run(main())
    assert orjson.loads(orjson.dumps(status))["steps"][0]["waiting"].get("inbox", 0) == told
    labels = frozenset({("pipeline", "mine"), ("step", "in"), ("place", "inbox")})
    assert samples(text).get(("asyncstream_elements_waiting", labels), 0) == told
    warned = [record for record in caplog.records if "unread() of Telling" in record.message]
    assert len(warned) == (told == 0)


@pytest.mark.parametrize("names", [None, "good", [3], OSError("closed"), ("good",)])
def test_names_of_counters_that_are_none_are_left_out(names: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Naming(Odd):
        def counter_names(self) -> tuple[str, ...]:
            if isinstance(names, Exception):
                raise names
            return names  # type: ignore[no-any-return]

    is_right = names == ("good",)
    for function in (Naming({"good": 7}), retry(Naming({"good": 7}))):
        pipeline = Pipeline("mine")
        pipeline.source([1], name="in").async_map(function, name="ask").discard()
        text = scraped(pipeline)
        name = f"asyncstream_function_{'count_total' if is_right else 'value'}"
        labels = frozenset({("pipeline", "mine"), ("step", "ask"), ("name", "good")})
        assert samples(text)[name, labels] == 7
    assert ("counter_names() of Naming" in caplog.text) != is_right


def test_registry_asks_a_job_before_while_and_after_it_runs() -> None:
    async def main() -> list[bytes]:
        pipeline = Pipeline("orders")
        pipeline.submissions(name="orders").discard()
        job = pipeline.start()
        registry = CollectorRegistry(auto_describe=True)
        registry.register(JobCollector(job))
        texts = [generate_latest(registry)]
        async with job:
            texts.append(generate_latest(registry))
        return [*texts, generate_latest(registry)]

    for text, state in zip(run(main()), ("new", "running", "finished"), strict=True):
        assert f'state="{state}"}} 1.0' in text.decode()


def test_scrape_from_another_thread_is_answered_by_the_loop_of_the_job() -> None:
    asked_in: list[int] = []

    class Watched(AsyncFunction[int, int]):
        async def invoke(self, value: int) -> int:
            return value

        def metrics(self) -> dict[str, int]:
            asked_in.append(threading.get_ident())
            return {}

    async def main() -> bytes:
        pipeline = Pipeline()
        pipeline.submissions().async_map(Watched()).discard()
        async with pipeline.start() as job:
            body, _ = await asyncio.to_thread(exposition, job)
        return body

    assert b"asyncstream_job_state" in asyncio.run(main())
    assert set(asked_in) == {threading.get_ident()}


def test_scrape_of_a_job_whose_loop_is_blocked_is_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncstream.runtime.aio.standing_still.LOOP_SECONDS", 0.01)
    scraped, bodies = threading.Event(), list[bytes]()

    def scrape(job: Job) -> None:
        bodies.append(exposition(job)[0])
        scraped.set()

    async def main() -> None:
        pipeline = Pipeline()
        pipeline.submissions(name="orders").discard()
        async with pipeline.start() as job:
            threading.Thread(target=scrape, args=(job,)).start()
            assert scraped.wait(30)  # holds the loop

    asyncio.run(main())
    assert b"asyncstream_job_state" in bodies[0]


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"asyncstream\[prometheus\]"):
        exposition()


def test_what_is_no_job_is_refused_before_a_scrape() -> None:
    with pytest.raises(PipelineError, match="jobs: expected a Job"):
        JobCollector(Pipeline())  # type: ignore[arg-type]


class Wrong:
    """Measured wrongly on purpose."""

    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def measure(self) -> tuple[Metric, ...]:
        return self._metrics


def test_checker_finds_what_is_wrong() -> None:
    text = exposition(Wrong(Metric("made.wrong_ms", "gauge", "1", "", (Point({"a": "b"}, 1),))))[0].decode()
    assert len(list(complaints(text))) == 2
