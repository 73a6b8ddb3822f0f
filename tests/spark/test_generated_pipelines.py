"""
One specification, two runtimes: pipelines that Hypothesis draws give on Spark what they give embedded.

Most run on the stand-in for Spark; `test_standin` shows that it can be trusted, and a few run on Spark
itself. ASYNCSTREAM_DRAWN=5000 draws that many of each kind instead of the usual number, and
ASYNCSTREAM_SEEDS=50 that many streams for Spark itself, of which workers are killed.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from asyncstream import BoundedOutOfOrderness, NoWatermarks
from tests.spark.cluster import run_stream, write_batches
from tests.spark.fake_spark import StandIn
from tests.spark.generated_pipelines import Batches, Drawn, Rows, embedded, row_columns
from tests.spark.newer_steps import ONE_INPUT, ORDERED, TWO_INPUTS, Newer
from tests.spark.processes import killing_workers
from tests.spark.steps import Plain, Processed
from tests.spark.strategies import Account, keyed_steps, micro_batches, pipelines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncstream.runtime.spark import SparkPlan

EXAMPLES = int(os.environ.get("ASYNCSTREAM_DRAWN", "75"))

STREAMS = int(os.environ.get("ASYNCSTREAM_SEEDS", "2"))
"""On Spark itself, where each takes some seconds."""

always = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="ASYNCSTREAM_DRAWN" not in os.environ,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
)

SPARKS = st.builds(
    StandIn,
    seed=st.integers(0, 2**16),
    partitions=st.integers(1, 3),
    records=st.integers(1, 7),
    packed=st.sampled_from([1, 3, 50_000]),
    unsteady=st.booleans(),
)


def compare(
    plan: SparkPlan, ordered: set[str], outputs: Mapping[str, list[str]], expected: list[str]
) -> None:
    """The same elements, and those of a key in the same order where that is promised."""
    found = [line for lines in outputs.values() for line in lines]
    note(plan.describe())
    note(f"missing {Counter(expected) - Counter(found)}\nadded {Counter(found) - Counter(expected)}")
    assert Counter(found) == Counter(expected)
    assert of_keys(ordered, found) == of_keys(ordered, expected)


def of_keys(ordered: set[str], lines: list[str]) -> dict[tuple[str, str], list[str]]:
    found = defaultdict(list)
    for line in lines:
        name, key, element = line.split("\t")
        if name in ordered:
            found[name, key].append(element)
    return found


@pytest.mark.timeout(600 + EXAMPLES)
@always
@given(
    pipelines(streaming=True),
    micro_batches(),
    SPARKS,
    st.integers(1, 5),
    st.none() | st.integers(1, 5),
    st.integers(1, 5),
)
def test_stream_gives_what_the_embedded_engine_gives(
    drawn: Drawn,
    batches: Batches,
    spark: StandIn,
    key_groups: int,
    stopped_before: int | None,
    partitions: int,
) -> None:
    """Also if it is stopped, and started again by a new plan, with other partitions."""
    inputs = [
        spark.stream([drawn.divided(partitions, source) for partitions in batches], row_columns())
        for source in range(drawn.sources)
    ]
    found: dict[str, list[str]] = defaultdict(list)
    for end in (stopped_before, None) if stopped_before else (None,):
        plan, told = drawn.on_spark(spark, inputs, key_groups=key_groups)
        spark.stop_before = end
        for name, lines in run_stream(plan, Path("checkpoint")).items():
            found[name] += lines
        spark.rescale("checkpoint", min(partitions, key_groups))
    expected = embedded(drawn, batches, streaming=True, stopped_before=[stopped_before or 0])
    compare(plan, told.ordered, found, expected)


@pytest.mark.timeout(600 + EXAMPLES)
@always
@given(pipelines(streaming=False), micro_batches(), SPARKS, st.integers(1, 5))
def test_bounded_job_gives_what_the_embedded_engine_gives(
    drawn: Drawn, batches: Batches, spark: StandIn, key_groups: int
) -> None:
    partitions: list[Rows] = [rows for batch in batches for rows in batch]
    inputs = [spark.bounded(drawn.divided(partitions, n), row_columns()) for n in range(drawn.sources)]
    plan, told = drawn.on_spark(spark, inputs, at_the_end(drawn), key_groups=key_groups)
    found = {name: [row.line for row in plan[name].collect()] for name in plan}
    compare(plan, told.ordered, found, embedded(drawn, [partitions], streaming=False))


@pytest.mark.parametrize("kind", [*ONE_INPUT, *TWO_INPUTS, *ORDERED])
@pytest.mark.parametrize("number", [1, 2])
def test_every_kind_of_newer_step_has_something_to_say(kind: str, number: int) -> None:
    step = Newer(kind, "coarse", "full", 20, number, True, kind in ORDERED)
    drawn = Drawn((), ((step, True), (Plain("map"), True)), step.ordered, 7, 1, False, True)
    of_batch = [
        [range(first, first + 8), range(first + 10, first + 15), [first + 9, first + 8]]
        for first in range(0, 80, 16)
    ]
    batches = [
        [[{"k": n * 5 % 7, "n": n, "ts": n * 13 % 120 + n // 16 * 60} for n in part] for part in parts]
        for parts in of_batch
    ]
    source = StandIn(1).stream(batches, row_columns())
    plan, told = drawn.on_spark(source.sparkSession, [source], key_groups=3)
    found = run_stream(plan, Path())
    lines = [line for of_output in found.values() for line in of_output]
    expected = embedded(drawn, batches, streaming=True)
    assert Counter(lines) == Counter(expected)
    assert of_keys(told.ordered, lines) == of_keys(told.ordered, expected)
    # of all elements of a key the first has been passed on before one is late
    assert all(found.values()) or kind == "deduplicate_by_time", "each way out has something"


def at_the_end(drawn: Drawn) -> NoWatermarks | None:
    """No watermark but the last, where there is a step that sees them in a bounded job."""
    return NoWatermarks() if drawn.processes() else None


@st.composite
def processing(draw: st.DrawFn) -> Drawn:
    """A process function, which sees event time move, behind one source or two."""
    step = draw(keyed_steps(Account(streaming=False)).filter(lambda step: isinstance(step, Processed)))
    assert isinstance(step, Processed)
    after = ((replace(step, first=False), True), (Plain("map"), True))
    sources = draw(st.sampled_from([1, 1, 2]))
    return Drawn((), after, True, draw(st.sampled_from([0, 7, 20])), sources, False, draw(st.booleans()))


@pytest.mark.timeout(600 + EXAMPLES)
@always
@given(processing(), micro_batches(), SPARKS, st.integers(1, 5), st.sampled_from([0.0, 0.005, 0.2]))
def test_process_function_of_a_bounded_job_sees_event_time_move_as_embedded(
    drawn: Drawn, batches: Batches, spark: StandIn, key_groups: int, every: float
) -> None:
    partitions: list[Rows] = [rows for batch in batches for rows in batch]
    inputs = [spark.bounded(drawn.divided(partitions, n), row_columns()) for n in range(drawn.sources)]
    watermarks = BoundedOutOfOrderness(drawn.delay / 1000, every=every)
    plan, told = drawn.on_spark(spark, inputs, watermarks, key_groups=key_groups)
    found = {name: [row.line for row in plan[name].collect()] for name in plan}
    compare(plan, told.ordered, found, embedded(drawn, [partitions], streaming=False, moving=watermarks))


# ---------------------------------------------------------------------- on Spark itself


def is_rich(drawn: Drawn) -> bool:
    """Two keyed steps, and calls."""
    kinds = [type(step).__name__ for step, _ in drawn.after]
    asks = any(step.kind.startswith("async") for step, _ in drawn.after if isinstance(step, Plain))
    return len(kinds) - kinds.count("Plain") == 2 and asks


RICH_BATCHES = micro_batches().filter(
    lambda batches: sum(len(rows) for part in batches for rows in part) > 15
)

few = settings(always, max_examples=3, derandomize=True, phases=[Phase.generate])


@few
@given(pipelines(streaming=False, slow=False).filter(is_rich), RICH_BATCHES, st.integers(1, 5))
def test_bounded_job_on_spark_gives_what_the_embedded_engine_gives(
    spark: SparkSession, drawn: Drawn, batches: Batches, key_groups: int
) -> None:
    partitions: list[Rows] = [rows for batch in batches for rows in batch]

    def frame(source: int) -> DataFrame:
        parts = drawn.divided(partitions, source) or [[]]
        data = spark.sparkContext.parallelize(parts, len(parts)).flatMap(lambda rows: rows)
        return spark.createDataFrame(data, row_columns())

    inputs = [frame(source) for source in range(drawn.sources)]
    plan, told = drawn.on_spark(spark, inputs, at_the_end(drawn), key_groups=key_groups)
    found = {name: [row.line for row in plan[name].collect()] for name in plan}
    plan.release()
    compare(plan, told.ordered, found, embedded(drawn, [partitions], streaming=False))


@pytest.mark.timeout(600 + 100 * STREAMS)
@settings(few, max_examples=STREAMS)
@given(
    pipelines(streaming=True, slow=False).filter(is_rich),
    RICH_BATCHES,
    st.integers(1, 5),
    st.integers(0, 2**16),
)
def test_stream_on_spark_gives_what_the_embedded_engine_gives_though_workers_are_killed(
    spark: SparkSession, drawn: Drawn, batches: Batches, key_groups: int, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = []
        for source in range(drawn.sources):
            of_source = [drawn.divided(partitions, source) for partitions in batches]
            files = [[row for rows in partitions for row in rows] for partitions in of_source]
            write_batches(folder / f"{source}", files)
            reader = spark.readStream.schema(row_columns()).option("maxFilesPerTrigger", 1)
            inputs.append(reader.json(str(folder / f"{source}")))
        plan, told = drawn.on_spark(spark, inputs, key_groups=key_groups)
        with killing_workers(folder / "checkpoint", seed, most=2) as killed:
            found = run_stream(plan, folder / "checkpoint")
    assert killed
    compare(plan, told.ordered, found, embedded(drawn, batches, streaming=True))
