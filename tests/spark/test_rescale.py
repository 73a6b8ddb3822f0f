"""State of a stopped query: looked up by key, divided among other partitions, and among other key groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from asyncstream import (
    BoundedOutOfOrderness,
    CheckpointError,
    Checkpoints,
    KeyedContext,
    KeyedProcessFunction,
    MemoryStore,
    Pipeline,
    PipelineError,
    Stream,
)
from asyncstream.cli import main
from asyncstream.runtime.spark import SparkPlan
from asyncstream.runtime.spark.wire.keys import KeyGroups
from asyncstream.windowing import Count, Max, TumblingWindows
from tests.spark import contract
from tests.spark.cluster import columns, event_columns, frame, run_stream, stream, write_batches, write_more
from tests.spark.contract import Definition, batches_of, embedded, on_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = [f"k{number}" for number in range(20)]


def micro_batch(second: int) -> list[dict[str, Any]]:
    return [{"key": key, "ts": second * 1000 + n, "v": n} for key in KEYS for n in range(3)]


def windows(spark: SparkSession, rows: DataFrame, **options: Any) -> SparkPlan:
    from pyspark.sql.types import StringType

    pipeline = Pipeline("windows")
    source: Stream[Any] = pipeline.source([], name="rows")
    timed = source.event_time(lambda row: row["ts"], BoundedOutOfOrderness(0))
    counts = timed.key_by(lambda row: row["key"]).window(TumblingWindows(4)).aggregate(Count(), name="counts")
    counts.map(lambda found: f"{found.key} {found.start_ms} {found.value}").to([], name="lines")
    outputs = {"lines": columns(line=StringType())}
    return pipeline.on_spark(spark, inputs={"rows": rows}, outputs=outputs, key_groups=12, **options)


def test_stream_goes_on_with_another_number_of_partitions(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    plan = windows(spark, stream(spark, tmp_path / "in", [micro_batch(0), micro_batch(1)]))
    assert run_stream(plan, Path(checkpoint)) == {"lines": []}
    plan.save_checkpoint(checkpoint, tmp_path / "saved")
    assert main(["state", "query", str(tmp_path / "saved"), "counts", "k7"]) == 0
    assert "6" in capsys.readouterr().out, "three elements of each second"
    for _ in range(2):  # the second time there is nothing to do
        plan.rescale(checkpoint, 3)

    rows = spark.readStream.schema(event_columns()).json(str(tmp_path / "in"))
    write_batches(tmp_path / "more", [micro_batch(second) for second in (2, 3, 9)])
    for number, path in enumerate(sorted((tmp_path / "more").iterdir()), start=2):
        path.rename(tmp_path / "in" / f"{number:05}.json")
    lines = run_stream(windows(spark, rows), Path(checkpoint))["lines"]
    assert sorted(lines) == sorted(f"{key} 0 12" for key in KEYS)
    state = Path(checkpoint, "state", "0")
    assert {path.name for path in state.iterdir() if path.name.isdigit()} == {"0", "1", "2"}


def test_what_cannot_be_divided_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    plan = windows(spark, stream(spark, tmp_path / "in", [micro_batch(0)]))
    with pytest.raises(
        PipelineError, match=r"partitions: expected at most the 12 key groups, got 13; .* key_groups="
    ):
        plan.rescale(str(tmp_path), 13)
    with pytest.raises(PipelineError, match="partitions: expected an integer of at least 1, got 0"):
        plan.rescale(str(tmp_path), 0)
    with pytest.raises(CheckpointError, match=r"/nothing holds no micro-batch that has ended: .* option"):
        plan.rescale(str(tmp_path / "nothing"), 2)
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(PipelineError, match="only a stream of keyed steps has state"):
        windows(spark, frame(spark, micro_batch(0))).rescale(str(tmp_path), 2)


def test_another_plan_is_refused_whatever_keys_come(spark: SparkSession, tmp_path: Path) -> None:
    """Also if these are in groups that the checkpoint has nothing of yet, at the second keyed step, too."""

    def run(second: Any, key_groups: int = 4) -> list[str]:
        pipeline = Pipeline()
        source: Stream[Any] = pipeline.source([], name="rows")
        firsts = source.key_by("key").deduplicate()
        results = firsts.key_by("v").count_window(1).aggregate(second, name="second")
        results.map(lambda found: f"{found.key} {found.value}").to([], name="lines")
        plan = pipeline.on_spark(
            spark, inputs={"rows": rows}, outputs={"lines": "line string"}, key_groups=key_groups
        )
        return run_stream(plan, tmp_path / "checkpoint")["lines"]

    rows = stream(spark, tmp_path / "in", [[{"key": "a", "ts": 0, "v": 0}]])
    assert run(Count()) == ["0 1"]
    write_more(tmp_path / "in", [[{"key": "a", "ts": 0, "v": 1}]], first=1)
    assert KeyGroups(64).of("a") >= 4
    with pytest.raises(StreamingQueryException, match=r"has 4 key groups, and the plan 64: .*key_groups=4"):
        run(Count(), key_groups=64)
    assert run(Count()) == [], "it is there already"
    write_more(tmp_path / "in", [[{"key": "b", "ts": 0, "v": 2}]], first=2)
    assert KeyGroups(4).of(2) != KeyGroups(4).of(0)
    with pytest.raises(StreamingQueryException, match="step 'second' has changed"):
        run(Max("v"))
    assert run(Count()) == ["2 1"]


@pytest.mark.parametrize(("define", "commits"), [(contract.windows, "1"), (contract.functions, "2")])
def test_stream_goes_on_with_other_key_groups(
    spark: SparkSession, tmp_path: Path, define: Definition, commits: str
) -> None:
    """Also where Spark's commits name the state."""
    with another_number(spark, "spark.sql.streaming.stateStore.checkpointFormatVersion", commits):
        _goes_on_with_other_key_groups(spark, tmp_path, define)
    notes = [path for path in (tmp_path / "third" / "commits").iterdir() if path.name.isdigit()]
    assert {path.read_text().splitlines()[0] for path in notes} == {f"v{commits}"}


def _goes_on_with_other_key_groups(spark: SparkSession, tmp_path: Path, define: Definition) -> None:
    batches, folder = batches_of(11, count=4), tmp_path / "in"
    rows = stream(spark, folder, batches[:2])
    found = run_stream(on_spark(spark, rows, define, key_groups=3), tmp_path / "first")["lines"]

    wider = on_spark(spark, rows, define, key_groups=8)
    with another_number(spark, "spark.sql.shuffle.partitions", "4"):
        wider.regroup(str(tmp_path / "first"), str(tmp_path / "second"))
    write_more(folder, batches[2:3], first=2)
    # a micro-batch without rows, in which timers would fire, is left to the next query
    with another_number(spark, "spark.sql.streaming.noDataMicroBatches.enabled", "false"):
        found += run_stream(wider, tmp_path / "second")["lines"]
    assert len([path for path in (tmp_path / "second" / "state" / "0").iterdir() if path.name.isdigit()]) == 4

    narrower = on_spark(spark, rows, define, key_groups=2)
    narrower.regroup(str(tmp_path / "second"), str(tmp_path / "third"))
    write_more(folder, batches[3:], first=3)
    found += run_stream(narrower, tmp_path / "third")["lines"]
    assert sorted(found) == embedded(batches, define)


@contextmanager
def another_number(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


class Later(KeyedProcessFunction[Any, Any]):
    """Tells of a key when the clock is a moment further."""

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        ctx.register_processing_timer(ctx.now_ms + 1)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        out(ctx.key)


def test_timers_that_are_due_wait_for_the_new_query(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql.types import StringType

    def later(key_groups: int) -> SparkPlan:
        pipeline = Pipeline("later")
        source: Stream[Any] = pipeline.source([], name="rows")
        source.key_by("key").process(Later(), name="later").to([], name="keys")
        outputs = {"keys": columns(key=StringType())}
        return pipeline.on_spark(
            spark, inputs={"rows": rows}, outputs=outputs, key_groups=key_groups, processing_time=True
        )

    def one_micro_batch(plan: SparkPlan, place: str) -> list[str]:
        found: list[str] = []
        writer = plan["keys"].writeStream.foreachBatch(
            lambda rows, _: found.extend(r.key for r in rows.collect())
        )
        query = writer.option("checkpointLocation", str(tmp_path / place)).trigger(once=True).start()
        assert query.awaitTermination(200)
        return found

    rows = stream(spark, tmp_path / "in", [micro_batch(0)])
    assert one_micro_batch(later(3), "first") == []
    later(5).regroup(str(tmp_path / "first"), str(tmp_path / "second"))
    assert one_micro_batch(later(5), "second") == [], "the first of a run waits for rows"
    write_more(tmp_path / "in", [[{"key": "one more", "ts": 0, "v": 0}]], first=1)
    assert sorted(one_micro_batch(later(5), "second")) == sorted(KEYS)


def test_query_that_has_not_ended_what_it_began_is_told_how(spark: SparkSession, tmp_path: Path) -> None:
    """By what is said it ends that and no more, also with processing time."""
    rows = stream(spark, tmp_path / "in", [micro_batch(0)])
    plan = windows(spark, rows, processing_time=True)
    place = tmp_path / "checkpoint"
    kept = Checkpoints(store=MemoryStore(), codec="pickle")
    commands: dict[str, Callable[[], object]] = {
        "save": lambda: plan.save_checkpoint(str(place), kept),
        "regroup": lambda: plan.regroup(str(place), str(tmp_path / f"to {next(numbers)}")),
        "rescale": lambda: plan.rescale(str(place), 3),
    }
    numbers = count()
    nothing, begun = r"checkpoint holds no micro-batch that has ended: ", r"micro-batch {} of .* not ended: "
    advice = r".*with the plan that the query had and \.trigger\(once=True\)"

    def refused(**words: str) -> None:
        for name, told in words.items():
            with pytest.raises(CheckpointError, match=told + advice):
                commands[name]()

    def run(*, is_ended: bool) -> None:
        def write(outputs: Any, number: int) -> None:
            if not is_ended:
                raise RuntimeError("stopped")

        writer = plan.write_stream(write).option("checkpointLocation", str(place))
        query = writer.trigger(once=True).start()
        with nullcontext() if is_ended else pytest.raises(StreamingQueryException, match="stopped"):
            assert query.awaitTermination(200)

    place.mkdir()
    (place / "commits").mkdir()
    refused(save=nothing, regroup=nothing, rescale=nothing)
    run(is_ended=False)
    refused(save=nothing, regroup=begun.format(0), rescale=begun.format(0))
    run(is_ended=True)
    commands["save"]()
    write_more(tmp_path / "in", [micro_batch(1)], first=1)
    run(is_ended=False)
    refused(regroup=begun.format(1), rescale=begun.format(1))
    run(is_ended=True)
    for command in commands.values():
        command()


def test_state_that_was_not_divided_to_the_end_is_told_how_to_be(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    plan = windows(spark, stream(spark, tmp_path / "in", [micro_batch(0)]))
    run_stream(plan, place)
    last = max(int(path.name) for path in (place / "offsets").iterdir() if path.name.isdigit())
    form, said, *sources = (place / "offsets" / f"{last}").read_text().split("\n")
    then = json.loads(said)
    then["conf"]["spark.sql.shuffle.partitions"] = "3"  # as Spark notes it, which then dies
    (place / "offsets" / f"{last + 1}").write_text("\n".join([form, json.dumps(then), *sources]))
    told = r"divides the state: .* by rescale\(\.\.\., partitions=3\)"
    with pytest.raises(CheckpointError, match=told):
        plan.rescale(str(place), 4)
    with pytest.raises(CheckpointError, match=told):
        plan.regroup(str(place), str(tmp_path / "to"))
    plan.rescale(str(place), 3)
    plan.rescale(str(place), 4)


def test_query_that_cannot_be_gone_on_from_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place, to = tmp_path / "first", tmp_path / "second"
    plan = windows(spark, stream(spark, tmp_path / "in", [micro_batch(0)]))
    with pytest.raises(CheckpointError, match="first holds no micro-batch that has ended"):
        plan.regroup(str(place), str(to))
    run_stream(plan, place)
    last = max(int(path.name) for path in (place / "offsets").iterdir() if path.name.isdigit())
    (place / "offsets" / f"{last + 1}").write_text((place / "offsets" / f"{last}").read_text())
    with pytest.raises(CheckpointError, match=f"micro-batch {last + 1} .*first has begun and not ended"):
        plan.regroup(str(place), str(to))
    (place / "offsets" / f"{last + 1}").unlink()
    to.mkdir()
    with pytest.raises(CheckpointError, match=r"there is something at .*second already"):
        plan.regroup(str(place), str(to))
    (place / "offsets" / f".{last}.crc").unlink()
    (place / "offsets" / f"{last}").write_text("v9\n{}\n{}")
    told = "has Spark's format 'v9', of which only 'v1' is known.* start_from=.*offsetLog.formatVersion=1"
    with pytest.raises(CheckpointError, match=told):
        plan.regroup(str(place), str(tmp_path / "third"))
    assert not (tmp_path / "third").exists()
    with pytest.raises(PipelineError, match="regroup: only a stream of keyed steps has state"):
        windows(spark, frame(spark, micro_batch(0))).regroup(str(place), str(to))
    with pytest.raises(PipelineError, match="to: expected a non-empty text, got None"):
        plan.regroup(str(place), None)  # type: ignore[arg-type]
