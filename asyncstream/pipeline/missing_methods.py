"""
The error for a method that a stream does not have: where the method is, or what it is called here.

Nothing is missed as often as a `key_by` before windows, or an `aggregate` behind them; and who comes from
another framework tries the words of that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from asyncstream.errors import PipelineError
from asyncstream.joins import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from asyncstream.operators.process import KeyedProcessFunction
from asyncstream.other_words import by_word
from asyncstream.windowing import ProcessWindowFunction

__all__ = ("PIPELINE_WORDS", "WORDS", "Fluent", "Unfinished", "where_it_goes")

_ROLLING: Final = ".reduce(...) for a result with each element, .window(...).aggregate(...) for one of many"
_ENDS: Final = ".to(...) of a sink, a list or a function"

WORDS: Final = by_word(
    ("keyBy group_by groupBy groupByKey groupby key_on partition_by partitionBy repartition", ".key_by(...)"),
    ("mapValues map_values apply select", ".map(...)"),
    ("where", ".filter(...)"),
    ("flatMap flatten flat_map_values explode", ".flat_map(...)"),
    ("merge concat union_all unionAll unionByName", ".union(...)"),
    ("split", ".branch(...)"),
    ("distinct unique drop_duplicates dropDuplicates", ".deduplicate(...)"),
    ("assign_timestamps_and_watermarks assignTimestampsAndWatermarks", ".event_time(...)"),
    ("assign_timestamps with_watermark withWatermark", ".event_time(...)"),
    ("stateful_map stateful transform flat_map_with_state", ".key_by(...).process(...)"),
    ("sum count fold aggregate_by scan accumulate reduce_by_key reduceByKey", _ROLLING),
    ("min max", ".min_by(...) and .max_by(...), or .window(...).aggregate(...)"),
    ("getSideOutput get_side_output", ".side(...) of what .process(...) gives"),
    ("interval_join intervalJoin", ".join(...).within(...)"),
    ("left_join leftJoin", '.join(..., how="left")'),
    ("cogroup coGroup", ".co_group(...)"),
    ("sort sort_by sortBy order_by orderBy", ".top(...), or .window(...).collect() and what sorts its lists"),
    ("first head limit take", "islice(...) of what the source reads, or .results() until there are enough"),
    ("toTable to_table", ".as_table(...)"),
    ("windowed_by windowedBy tumbling tumbling_window hopping hopping_window tumble hop", ".window(...)"),
    ("sliding sliding_window session session_window time_window", ".window(...)"),
    ("sink sink_to sinkTo add_sink addSink output foreach for_each subscribe", _ENDS),
    ("to_list toList write write_to writeStream foreachBatch for_each_batch", _ENDS),
    ("toPandas", ".to_pandas(...)"),
    ("print show", ".to(print)"),
    (
        "batch buffer chunked",
        ".async_map(batched(...)) for one call, .key_by(...).count_window(...) for lists",
    ),
    ("peek inspect tap do", ".map(...) of a function that returns its element"),
    ("retry with_retry rate_limit throttle", ".async_map(...) of a guarded function, as retry(fn)"),
    ("name uid named", "name= of the method that adds the step"),
    ("set_parallelism setParallelism", "concurrency= of .async_map(...)"),
    ("async_wait unordered_wait ordered_wait amap map_async asyncMap mapAsync", ".async_map(...)"),
)
"""What streams elsewhere have, and what it is called here."""


_OF_A_STEP: Final = {
    "late": ".window(...).aggregate(...), or another step that looks at event time,",
    "late_left": ".join(...).within(...)",
    "late_right": ".join(...).within(...)",
    "side": ".process(...)",
    "timed_out": '.async_map(..., on_timeout="route"), or .pattern(...),',
    "rejected": "pipeline.source(...)",
}
"""The side outputs that some streams have."""


PIPELINE_WORDS: Final = by_word(
    ("from_collection fromCollection from_source fromSource add_source addSource", ".source(...)"),
    ("from_iterable from_list from_elements fromElements of", ".source(...)"),
    ("read stream topic input", ".source(...)"),
    ("execute", "await pipeline.run(), or .run_blocking()"),
)
"""What pipelines and their like have elsewhere."""


_PROCESS: Final = (
    (KeyedProcessFunction, "stream.key_by(...).process(...)"),
    (KeyedCoProcessFunction, "a.connect(b).process(...)"),
    (KeyedBroadcastProcessFunction, "a.connect(b.broadcast()).process(...)"),
    (ProcessWindowFunction, "stream.window(...).process(...)"),
)


def where_it_goes(function: object, otherwise: str = "") -> str:
    """The advice for a process function that was given to a step for another kind of them."""
    for kind, step in _PROCESS:
        if isinstance(function, kind):
            return f"a {kind.__name__} belongs in {step}"
    return otherwise


class Fluent:
    """Base of streams, and of what stands between two of them: what it has not, it says where to find."""

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name: str) -> object:
            raise _no_attribute(self, name)

        def __aiter__(self) -> object:
            raise PipelineError(
                "elements are taken from a job: end the stream with .results(), and write "
                "`async for result in job.results():` in `async with pipeline.start() as job:`"
            )

        __iter__ = __aiter__


class Unfinished(Fluent):
    """Base of what stands before streams, between two, or behind the last: it has no method of theirs."""

    _comes_next: ClassVar[str]
    """What to do first, or instead, where a method of a stream is missed."""


def _no_attribute(of: object, name: str) -> AttributeError:
    """The error for an attribute that `of` has not."""
    # they import the module of streams, which imports this one
    from asyncstream.pipeline.keyed import KeyedStream, WindowedStream
    from asyncstream.pipeline.pipeline import Pipeline

    advice = ""
    if not name.startswith("_"):
        if isinstance(of, Pipeline) and name in PIPELINE_WORDS:
            advice = f"here it is {PIPELINE_WORDS[name]}"
        elif isinstance(of, Unfinished):
            if hasattr(KeyedStream, name) or name in WORDS or name in _OF_A_STEP:
                advice = of._comes_next
        elif hasattr(KeyedStream, name):
            advice = "put .key_by(...) directly before it"
            if name == "window":
                advice += ", or .window_all(...) in its place for windows of all elements together"
        elif hasattr(WindowedStream, name):
            is_keyed = isinstance(of, KeyedStream)
            advice = f"put it directly behind {'' if is_keyed else '.key_by(...) and '}.window(...)"
        elif name in _OF_A_STEP:
            advice = f"it belongs to what {_OF_A_STEP[name]} gives: keep that in a variable"
        elif name in WORDS:
            advice = f"here it is {WORDS[name]}"
        elif hasattr(Pipeline, name):
            advice = "it is a method of the pipeline"
        elif name in PIPELINE_WORDS:
            advice = f"here it is {PIPELINE_WORDS[name]} of the pipeline"
    text = f"{type(of).__name__!r} object has no attribute {name!r}"
    return AttributeError(f"{text}; {advice}" if advice else text, name=name, obj=of)
