"""
What a failed job says of itself, without Spark's part.

An error of a task passes through Spark as text: PySpark's words, those of ours, and forty lines of Java. Ours
begin with the name of their class, and end where Spark's begin, which are not those of any Java: what a
service has answered may have such lines too. An error of a writer of micro-batches is that of the user's own
function, and comes as a traceback, with PySpark's frames above.

A step that has changed is refused by the tasks that find its state (`worker.group_head`). Of a plan that is
not its checkpoint's, Spark itself knows some before any task runs: how many streams are read, and from which
folders, how many operators have state, and by which time. It tells that in words that say nothing of steps,
nor of how to go on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from asyncstream.runtime.spark.worker.group_log import WAY_OUT
from asyncstream.validation import refuse

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

__all__ = ("failure_in", "failure_text", "reason_of")

_OURS: Final = re.compile(r"^.*?asyncstream\.errors\.(?=\w+: )", re.MULTILINE)

_WRITERS: Final = re.compile(
    r"(?:raised by the Python Proxy\. Return Message|inside foreachBatch Python process): (?=Traceback )"
)
"""What comes before the traceback of a function that was given to `foreachBatch`, also over Spark Connect."""

_SPARK: Final = re.compile(
    r"^(?:\tat org\.apache\.spark\.|\n?Driver stacktrace:$|\n?JVM stacktrace:$|=== Streaming Query ===$"
    r"|(?: SQLSTATE: \w{5})+\s*(?:\Z|^=== |^\tat org\.apache\.spark\.|^\w+ stacktrace:$))",
    re.MULTILINE,
)
"""Where Spark goes on behind an error of Python's."""

_HEAD: Final = "Traceback (most recent call last):\n"

_NOT_THE_USERS: Final = re.compile(
    r'^  File "[^"\n]*/(?:(?:(?:(?:site|dist)-packages|python|[^/"\n]+\.zip)/(?:py4j|pyspark)'
    r'|asyncstream/runtime/spark)/[^"\n]*|python[\d.]+/contextlib\.py)".*\n(?:    .*\n)*',
    re.MULTILINE,
)
"""
Frames of a traceback with their lines: of Spark's packages where such lie, for a user's folder may have their
names; and of the `with` by which ours compute what they write.
"""

_LAST_FRAME: Final = re.compile(r'(?s:.*)^  File "[^"\n]*".*\n(?:    .*\n)*', re.MULTILINE)

_JAVA: Final = re.compile(
    r"^(?:\tat | ?SQLSTATE: |\n?Driver stacktrace:|\n?JVM stacktrace:|=== Streaming Query ===)", re.MULTILINE
)

_JAVA_CLASS: Final = re.compile(r"^(?:\w+\.)+\w+: (?=\[)")
"""Of an error that has a name by which Spark's documents know it."""

_ELSEWHERE: Final = "Exception thrown in awaitResult:"

_WORKER_GONE: Final = "Python worker exited unexpectedly"
"""What Spark says when a worker's connection ends in the middle of a task."""

_WHY_GONE: Final = (
    "a Python worker of Spark has ended in the middle of a task: most often the system has killed it for "
    "want of memory, else native code or os._exit has ended it; give workers more room (a larger "
    "spark.executor.memoryOverhead, fewer cores for it), or have less at once (concurrency=, buffer=)"
)

_READER_GONE: Final = re.compile(
    r"^java\.(?:io|net)\.\w+Exception\b.*\n(?:\tat java\.base/.*\n)*"
    r"\tat org\.apache\.spark\.[\w.]*\.PythonStreamingSourceRunner\.",
    re.MULTILINE,
)
"""How Java says that it is connected no more with the process that reads a source."""

_WHY_READER_GONE: Final = (
    "the Python process in which Spark's driver reads a source has ended: most often the system has killed "
    "it for want of memory, else native code or os._exit has ended it; give it room, or have less at once "
    "(maxRowsPerTrigger), and start the query again: it goes on from its checkpoint"
)

_LOST: Final = re.compile(
    r"A shuffle map stage with indeterminate output was failed and retried"
    r"|Checkpoint block rdd_\d+_\d+ not found"
)

_WHY_LOST: Final = (
    "an executor of Spark has ended, or lost its files, and with it what had been computed. It is computed "
    "again with all its calls, which may have answered otherwise, or in another order, and results of the "
    "first answers are there already: rows would be lost, and others twice. Run the job again; a query goes "
    "on from its checkpoint"
)

_LET_GO: Final = (
    "; if executors are let go when they are idle (spark.dynamicAllocation.enabled), those that keep rows "
    "must not be: leave spark.dynamicAllocation.cachedExecutorIdleTimeout at its default, infinity, or it "
    "comes again"
)

_LOST_AGAIN: Final = re.compile(
    r"has failed the maximum allowable number of times: \d+\. Most recent failure reason:\s+\S*FetchFailed\S*"
)

_WHY_LOST_AGAIN: Final = (
    "executors of Spark have ended, or lost their files, one after another, each with what the next step "
    "was to read, as often as Spark computes that anew. Run the job again; a query goes on from its "
    "checkpoint. If it comes again, have executors stay for longer, or raise "
    "spark.stage.maxConsecutiveAttempts"
)

_STREAMS: Final = re.compile(
    r"There are \[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\] sources"
)

_OPERATORS: Final = re.compile(
    r"\[STREAMING_STATEFUL_OPERATOR_(?:NOT_MATCH_IN_STATE_METADATA|MISSING_STATE_DIRECTORY)\](?s:.*?)"
    r"(?:Stateful operators in the metadata: \[(.*)\]; )?Stateful operators in current batch: \[(.*)\]"
)

_FOLDER: Final = re.compile(
    r"\[STREAM_FAILED\].*Wrong basePath (.*) for the root path: (.*?)(?: SQLSTATE: .*)?$", re.MULTILINE
)

_NO_FILES: Final = "No usable value for logOffset"
"""What a source of files says of an offset that is none of its own."""

_TIME: Final = re.compile(r"Cannot change timeMode from (\w+) to (\w+) between restarts")

_KEYED: Final = "transformWithStateInPySpark"
"""What Spark calls a keyed stage."""

_TIMES: Final = {"EventTime": "event time", "ProcessingTime": "processing time", "NoTime": "no time"}

_NOTHING_TO_SAVE: Final = (
    "undo the change, or begin with a new checkpointLocation, behind what has been read; if there was state, "
    "the folder 'state' is gone"
)


def failure_text(failed: BaseException | StreamingQuery) -> str:
    """
    Why a job has failed: step, error and element first, then the traceback of your function.

        print(failure_text(query))
        UserFunctionError: step 'planes': LookupError: no plane 3, on element {'id': 3}
        Traceback (most recent call last): ...

    An error of what you have given to `foreachBatch` or `write_stream` begins with "foreachBatch: ".

    Args:
        failed: what an action has raised, such as `collect()`; or a query that has ended.

    Returns:
        What is not of asyncstream as Spark says it, without the lines of Java; of a query that has not failed
        an empty text.

    Raises:
        PipelineError: if it is neither.
    """
    if not isinstance(failed, BaseException) and not hasattr(failed, "awaitTermination"):
        raise refuse("failed", "an exception, or a StreamingQuery", failed)
    error: Any = failed if isinstance(failed, BaseException) else failed.exception()
    return "" if error is None else _told_by(error)


def _told_by(error: Any) -> str:
    """What an error says, or the one behind it: of what has failed in another thread, Spark says no more."""
    told = failure_in(str(error))
    behind = getattr(error, "_cause", None)
    if _READER_GONE.search(getattr(behind, "_stackTrace", None) or ""):  # of which it gives no message
        return _WHY_READER_GONE
    is_elsewhere = _ELSEWHERE in told.partition("\n")[0] and behind is not None
    return _told_by(behind) if is_elsewhere else told


def failure_in(text: str) -> str:
    """As `failure_text`, of what Spark says."""
    if ours := _OURS.search(text):
        return _up_to(_SPARK, text[ours.end() :])
    if _WORKER_GONE in text:
        return f"{_WHY_GONE}\n{_up_to(_JAVA, text[text.index(_WORKER_GONE) :])}"
    if _READER_GONE.search(text):
        return _WHY_READER_GONE
    if lost := _LOST.search(text):
        return f"{_WHY_LOST}{_LET_GO if 'block' in lost[0] else ''}\n{lost[0]}"
    if again := _LOST_AGAIN.search(text):
        return f"{_WHY_LOST_AGAIN}\n{again[0].rstrip(':')}"
    if writers := _WRITERS.search(text):
        return _of_a_writer(_up_to(_SPARK, text[writers.end() :]))
    return _changed_plan_in(text) or _up_to(_JAVA, text)


def _up_to(end: re.Pattern[str], text: str) -> str:
    found = end.search(text)
    return (text if found is None else text[: found.start()]).strip()


def _of_a_writer(traceback: str) -> str:
    """The error first, then the user's part of the traceback, if there is one."""
    error = _LAST_FRAME.sub("", traceback, count=1)
    frames = _NOT_THE_USERS.sub("", traceback.removesuffix(error))
    shown = "" if frames == _HEAD else f"\n{frames}{error}"
    return f"foreachBatch: {error}{shown}"


def reason_of(error: BaseException) -> str:
    """In a line, why Spark could not do something."""
    told = failure_in(str(error)).splitlines() or [type(error).__name__]
    # of an error that PySpark does not know, the first line only says that there is one
    line = told[min(1, len(told) - 1)] if told[0].startswith("An error occurred while calling") else told[0]
    return _JAVA_CLASS.sub("", line.removeprefix(": ").partition(" SQLSTATE: ")[0]).removesuffix(".")


def _changed_plan_in(text: str) -> str:
    """How a plan differs from that of its checkpoint, if the query has failed for that; else empty."""
    if found := _STREAMS.search(text):
        was, now = found.groups()
        return _told(
            f"reads another number of streams: {was} there and {now} here, where start_from= counts as one, "
            "and stays for as long as the checkpoint that began with it; so do the names of several inputs"
        )
    if found := _OPERATORS.search(text):
        before, after = (part.count(_KEYED) for part in found.groups(""))
        if before != after:
            return _told(
                f"has another number of keyed stages: {before} there and {after} here, where plan.describe() "
                "shows them with their steps",
                WAY_OUT if before else _NOTHING_TO_SAVE,
            )
    if found := _FOLDER.search(text):
        now, was = found.groups()
        return _told(
            f"has read {was} where this one reads {now}; of several inputs, the order of their names tells "
            "which is which"
        )
    if _NO_FILES in text:
        return (
            "CheckpointError: this stream's checkpoint is of a query that has read something else than "
            "files; if plan.regroup was to make it, and was ended before it had, remove it, and regroup again"
        )
    if found := _TIME.search(text):
        was, now = (_TIMES.get(mode, mode) for mode in found.groups())
        return _told(f"goes by another time: its keyed steps by {was}, and those of this one by {now}")
    return ""


def _told(difference: str, way_out: str = WAY_OUT) -> str:
    return f"CheckpointError: this stream's checkpoint is of a plan that {difference}; {way_out}"
