"""
The checkpoint of a new query that goes on where a stopped one was, with other key groups.

Spark keeps of a query what each micro-batch reads to (`offsets`), that it has ended (`commits`), what sources
note for themselves (`sources`), and state by version. It can divide state among other partitions, but which
group a key belongs to is ours to say. So a query of the same stages, without inputs, is given all state in
its only micro-batch, as `start_from` gives it that of another checkpoint, and time stands still in it. Then
what it has noted of its inputs is replaced by what the stopped query had noted: the next micro-batch begins
there.

The offsets are replaced last. Until then they are those of a source that nothing else can read from, so that
a query which is started in a checkpoint left half made fails. (Spark's state knows where it is: it cannot be
made elsewhere, and moved.)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from asyncstream.errors import CheckpointError, PipelineError
from asyncstream.runtime.spark.failures import reason_of
from asyncstream.runtime.spark.stopped import HAVE_IT_END, none_ended

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ("Notes", "go_on")

TIMES = {"commits": ("nextBatchWatermarkMs",), "offsets": ("batchWatermarkMs", "batchTimestampMs")}
"""By note, what it says of time."""

FORMATS = {"commits": ("v1", "v2"), "offsets": ("v1",)}
"""
By note, what it may begin with. Commits are "v2" by `spark.sql.streaming.stateStore.checkpointFormatVersion`:
they name, besides, the state that their micro-batch has left.
"""

_WAY_OUT = {
    "commits": "",
    "offsets": " In a checkpoint begun with spark.sql.streaming.offsetLog.formatVersion=1 it is 'v1'.",
}
"""By note, what to say if it begins with another."""


class Notes:
    """
    What Spark has noted of a query, in the folder of its checkpoint, wherever Spark can reach it.

    Args:
        location: the folder.

    Raises:
        PipelineError: over Spark Connect, where files are out of reach.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        try:
            self._jvm: Any = spark._jvm
            self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        except Exception:  # which one depends on the version
            raise PipelineError("regroup: works in the driver only, not over Spark Connect") from None
        self.location = location.rstrip("/")
        self._root = self._jvm.org.apache.hadoop.fs.Path(self.location)
        self._files = self._root.getFileSystem(self._conf)

    def need_nothing(self) -> None:
        """Raises `CheckpointError` if there is something."""
        if self._files.exists(self._root):
            raise CheckpointError(
                f"there is something at {self.location} already: give a new checkpoint a place of its own, "
                "or, if a regroup was ended there before it was done, remove what it has left"
            )

    def need_some(self) -> None:
        """Raises `CheckpointError` if no query has begun anything here."""
        if not self._numbers("offsets"):
            raise CheckpointError(none_ended(self.location))

    def last(self) -> int:
        """
        The number of the last micro-batch; raises `CheckpointError` if there is none, or it has not ended.
        """
        self.need_some()
        if why := self.unrest():
            raise CheckpointError(why)
        return self._numbers("commits")[-1]

    def unrest(self) -> str:
        """Why the query cannot be gone on from elsewhere, if a micro-batch has to end first; else empty."""
        begun, ended = self._numbers("offsets"), self._numbers("commits")
        if begun[-1:] == ended[-1:]:
            return ""
        advice = f"have it end first, {HAVE_IT_END}"
        if ended and (divides := self._partitions(begun[-1])) != self._partitions(ended[-1]):
            advice = f"it divides the state: have it end first, by rescale(..., partitions={divides})"
        return f"micro-batch {begun[-1]} of the query in {self.location} has begun and not ended: {advice}"

    def _partitions(self, number: int) -> int:
        """Into how many Spark divides state in a micro-batch: other ones only to divide it anew."""
        return int(json.loads(self.read("offsets", number)[1])["conf"]["spark.sql.shuffle.partitions"])

    def watermark_ms(self) -> int:
        """Spark's own in the last micro-batch."""
        return int(json.loads(self.read("offsets", self.last())[1])["batchWatermarkMs"])

    def _numbers(self, folder: str) -> list[int]:
        path = self._path(folder)
        if not self._files.exists(path):
            return []
        names = [str(status.getPath().getName()) for status in self._files.listStatus(path)]
        return sorted(int(name) for name in names if name.isdigit())

    def read(self, log: str, number: int) -> list[str]:
        """
        The lines of a note: its format, what it says of the micro-batch, in JSON, then of each source; raises
        `CheckpointError` if it has another format.
        """
        name = f"{log}/{number}"
        stream = self._files.open(self._path(name))
        try:
            lines = str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).split("\n")
        finally:
            stream.close()
        if lines[0] not in FORMATS[log]:
            known = " and ".join(map(repr, FORMATS[log]))
            raise CheckpointError(
                f"{self.location}/{name} has Spark's format {lines[0]!r}, of which only {known} is known. To "
                "take the state alone to a new query, use save_checkpoint and start_from=, with sources that "
                f"begin behind what was read.{_WAY_OUT[log]}"
            )
        return lines

    def write(self, log: str, number: int, lines: list[str]) -> None:
        """Have a note say this instead."""
        stream = self._files.create(self._path(f"{log}/{number}"), True)
        try:
            stream.write("\n".join(lines).encode())
        finally:
            stream.close()

    def take_sources(self, other: Notes) -> None:
        """What sources note for themselves is what those of another query noted."""
        mine, theirs = self._path("sources"), other._path("sources")
        self._files.delete(mine, True)
        if other._files.exists(theirs):
            util = self._jvm.org.apache.hadoop.fs.FileUtil
            util.copy(other._files, theirs, self._files, mine, False, self._conf)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)


def go_on(taking_up: DataFrame, old: Notes, new: Notes) -> None:
    """
    Make the checkpoint of a new query.

    Args:
        taking_up: the stream of one micro-batch, without inputs, in which all state is taken up.
        old: of the stopped query.

    Raises:
        CheckpointError: if Spark cannot.
    """
    last = old.last()
    known = {log: old.read(log, last) for log in TIMES}  # before anything is made
    _run(taking_up, new.location)
    only = new.last()
    new.take_sources(old)
    for log, times in TIMES.items():
        (_, was, *sources), (form, now, *_) = known[log], new.read(log, only)
        then = json.loads(was)
        said = json.loads(now) | {name: then[name] for name in times}
        new.write(log, only, [form, json.dumps(said), *sources])


def _run(taking_up: DataFrame, location: str) -> None:
    """Have its one micro-batch run."""
    emitted = 0

    def look(batch: DataFrame, number: int) -> None:
        nonlocal emitted
        emitted = batch.count()

    writer = taking_up.writeStream.foreachBatch(look).option("checkpointLocation", location)
    try:
        query = writer.trigger(once=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
    except Exception as error:
        raise CheckpointError(f"the state cannot be taken up: {reason_of(error)}") from error
    if emitted:
        raise CheckpointError(f"{emitted} results left the query while its state was taken up")
