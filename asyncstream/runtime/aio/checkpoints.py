"""
Takes checkpoints of a running job, and finds the one to go on from.

Theory of operation
-------------------
Between two callbacks of the event loop the whole pipeline stands still: such a moment is a consistent cut,
and no barriers travel between the operators. A checkpoint is

1. **capture**, in that moment: where the sources stand, held fast, and what the operators remember: their
   tables are cut, so that what changes from then on changes elsewhere. In-flight calls are neither waited for
   nor disturbed. What waits for a transactional sink is cut in two;
2. **prepare**: each transactional sink writes what came before the cut, and makes it safe;
3. **save**: the store keeps all this, as a whole or not at all: parts that have changed first, then the
   manifest that names them;
4. **commit**: the transactional sinks are told that what they prepared stays.

Then old checkpoints are deleted, and sources that keep what they give are told how far back the oldest goes.

The pipeline runs on from the end of 1. Of tables only what changed since the last cut is encoded and written:
the parts of the checkpoints before stay, and are named again (`checkpoint.chains`). What was cut and could
not be encoded or written goes into the next checkpoint. A crash before the end of 3 leads to the checkpoint
before, to which the sinks roll back; a crash after it leads to this one, to which they roll forward. No
element is in two epochs, and none in neither: it is in what an operator remembers, or on one side of a cut.

What fails before the end of 3 costs this checkpoint, and the next one speaks for both. Numbers are never used
twice, so a save that was given up and succeeds all the same does no harm. What cannot be kept at all (a value
that the codec refuses) would fail every time: it fails the job at once.

The very first checkpoint is taken before anything is read: it shows that the store works, and no sink ever
holds something of which no checkpoint knows. So is that of a job with a source or a sink which the one it
goes on from does not know, or whose sinks may begin elsewhere than that one says (`ahead=`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from asyncstream.aside import aside, wait_at_most
from asyncstream.checkpoint import CheckpointInfo, Checkpoints, History
from asyncstream.checkpoint.format import Draft
from asyncstream.checkpoint.journal import Journal
from asyncstream.checkpoint.parts import CannotKeep
from asyncstream.checkpoint.timely import StoreFailed
from asyncstream.clock import Clock
from asyncstream.codec import Codec
from asyncstream.connectors.base import Source
from asyncstream.connectors.writer import Writer
from asyncstream.errors import CheckpointError, LeaseLost, SinkBroken, SourceError, describe_error
from asyncstream.lease import Lease
from asyncstream.long_work import give_back
from asyncstream.metrics import BYTES, Histogram, Timings
from asyncstream.operators.call_log import CallLog
from asyncstream.operators.spec import JournalUse
from asyncstream.plan import Graph, OperatorStep
from asyncstream.runtime.aio.captures import Captures
from asyncstream.runtime.aio.checkpoint_checks import check_settings
from asyncstream.runtime.aio.naming import naming
from asyncstream.runtime.aio.next_checkpoint import NOT_TAKEN, NextCheckpoint, Request
from asyncstream.runtime.aio.numbering import position_in
from asyncstream.runtime.aio.recovery import Bound, fence, signed, survey, transactional_sinks
from asyncstream.runtime.aio.table_log import TableLog
from asyncstream.runtime.aio.tenure import Tenure
from asyncstream.runtime.aio.wiring import RunWiring
from asyncstream.state import freeze

__all__ = ("Checkpointer",)

log = logging.getLogger("asyncstream.checkpoint")

INLINE_BYTES = 64 * 1024
"""States up to this size are encoded at once: less than a millisecond, and a thread costs a tenth of that."""

LARGE = 8 << 20
"""Bytes of a checkpoint from which on memory that it took to restore it is given back."""

PAUSE = 0.1
"""Seconds before the last checkpoint of a job is tried again; doubled each time."""

LONGEST_PAUSE = 5.0
"""The same, at most: a job that may fail ten times is not to end a minute and a half later."""


def _is_final(error: Exception) -> bool:
    """Whether the next checkpoint could not be better; one that is no `CheckpointError` came unforeseen."""
    is_lasting = isinstance(error, CannotKeep | LeaseLost) or isinstance(error.__cause__, SinkBroken)
    return is_lasting or not isinstance(error, CheckpointError)


class Checkpointer:
    """
    The checkpoints of one run.

    Args:
        failed: told of the error when the job is to fail.

    Attributes:
        tenure: the time in which this run may write to the store.
        resumed_from: the checkpoint that the job goes on from; None: it begins at the beginning.
        durations, pauses, sizes: of the checkpoints taken: seconds until each was safe, seconds for which the
            loop stood still, and bytes.
        migrated: the steps that go on with what functions of `migrate=` have made.
        last: the one that a job that started now would go on from; None: there is none.
        tables: what of tables is in them.
        journal: the calls that end between them; None: no step has them written down.
    """

    def __init__(
        self,
        settings: Checkpoints,
        graph: Graph,
        pipeline: str,
        clock: Clock,
        failed: Callable[[BaseException], None],
    ) -> None:
        check_settings(settings, graph)
        self._settings = settings
        self._graph = graph
        self._pipeline = pipeline
        self._clock = clock
        self._failed = failed
        self._codec = settings.values_codec()
        self._history = History(settings.timely_store(), self._codec, settings.key)
        self.tenure = Tenure(settings, self._lose, self._sign)
        self._waits_for = ""
        self.tables = TableLog(
            self._history, self._codec, lambda: self.tenure.lease, settings.inline_bytes, pipeline
        )
        self._captures = Captures(graph, self._codec, self.tables, settings)
        self.journal = _journal_of(settings, graph, self._codec, failed)
        self._number = 0  # of the last checkpoint that was begun
        self._is_first = True
        self.resumed_from: CheckpointInfo | None = None
        self.migrated: list[str] = []
        self._forgetful: list[str] = []  # the sources that are told what no checkpoint needs any more
        self._positions: dict[int, dict[str, Any]] = {}  # theirs, by checkpoint
        self._finished: dict[str, Any] = {}  # by source, what had been through at the last cut
        self.last: CheckpointInfo | None = None
        self._wanted = asyncio.Event()
        self._next = NextCheckpoint()
        self._task: asyncio.Task[None] | None = None
        self._compacting: asyncio.Task[None] | None = None
        self._closed = False
        self._has_failed = False
        self._in_a_row = 0
        self.durations, self.pauses, self.sizes = Timings(), Timings(), Histogram(BYTES)
        self._counts = dict.fromkeys(("taken", "failed", "number", "bytes", "pause_us", "duration_ms"), 0)

    # ------------------------------------------------------------------ going on from one

    async def load(self, wiring: RunWiring, bound: Bound) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        What operators remember and where sources stand, by name, in the checkpoint to go on from.

        Transactional sinks are told their positions, which they take up when they are started. `tenure` has
        begun before.

        Args:
            wiring: the parts of the job.
            bound: for what each sink and source takes to answer.

        Raises:
            CheckpointError: if it cannot be read, or does not fit the pipeline.
            SinkError: if a sink cannot go on from there.
        """
        self._wiring = wiring
        self.tables.begin(wiring.operators)
        await self._history.look()
        self._number = self._history.newest
        writer = self._sign(self.tenure.lease)
        for name, driver in wiring.sources.items():
            driver.source.checkpoint_soon = self._wanted.set
            if type(driver.source).forget is not Source.forget:
                self._forgetful.append(name)
        await fence(wiring, writer, bound)
        rows = self.tables.rows
        answers = await survey(
            self._settings, self._history, self._graph, self._pipeline, wiring, writer, rows, bound
        )
        found, self.migrated = answers.agreed(), answers.migrated()
        await self._history.clean(self.tenure.lease)
        if found.info is not None:
            known = found.states["source"].keys() | found.states["sink"].keys()
            ends = {*wiring.sources, *(name for name, *_ in transactional_sinks(wiring))}
            is_known = ends <= known and self._settings.ahead == "refuse"
            self._is_first = found.info.id != self._number or not is_known
            self.resumed_from = self.last = found.info
            standing = {name: position_in(saved) for name, saved in found.states["source"].items()}
            self._note_positions(found.info.id, standing)
            fields = {"pipeline": self._pipeline, "checkpoint": found.info.id}
            log.info("pipeline %r goes on from checkpoint %d", *fields.values(), extra=fields)
        if self.journal is not None:
            lease, checkpoint = self.tenure.lease, None if found.info is None else found.info.id
            # in a directory of the user's there may be those of other jobs
            store = None if self._settings.journal is None else lease.place
            await self.journal.load(checkpoint, lease.number, store)
        self.tables.go_on_from(found.parts)
        for name, operator, _ in transactional_sinks(wiring):
            operator.join_epochs(found.states["sink"].get(name), writer, self.tenure.confirm)
        return found.states["operator"], found.states["source"]

    def call_log(self, step: str) -> CallLog | None:
        """Where the calls of a step are written down that end between checkpoints; None: they are not."""
        return None if self.journal is None else self.journal.step(step)

    # ------------------------------------------------------------------ taking them

    async def begin(self) -> None:
        """Take the first checkpoint, unless the one gone on from will do, and then one every so often."""
        if self.resumed_from is not None and self.resumed_from.size > LARGE:
            await aside(give_back)
        if self._is_first:
            await self._take()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="asyncstream checkpoints")

    async def take(self, savepoint: bool = False) -> CheckpointInfo:
        """
        Take one now, perhaps as a savepoint; requests that come before it is begun share it. Raises
        `CheckpointError` if it failed, or the job takes no more.
        """
        return await asyncio.shield(self._request(savepoint))

    def ask(self, told: Callable[[bool], None]) -> None:
        """Have one taken of all that is so now; `told` is called with whether it is safe."""
        try:
            request = self._request()
        except CheckpointError:
            asyncio.get_running_loop().call_soon(told, False)
        else:
            request.add_done_callback(lambda done: told(not done.cancelled() and done.exception() is None))

    def _request(self, savepoint: bool = False) -> Request:
        if self._closed or self._has_failed:
            raise CheckpointError("the job takes no more checkpoints")
        self._wanted.set()
        return self._next.request(stays=savepoint)

    async def _run(self) -> None:
        every = self._settings.every_seconds
        while True:
            await wait_at_most(self._wanted, every)
            self._wanted.clear()
            if self._closed or self._has_failed:
                return
            await self._attempt(*self._next.begin())
            self._begin_compaction()

    async def _attempt(self, request: Request | None, savepoint: bool) -> None:
        try:
            info = await self._take(savepoint=savepoint)
        except Exception as error:  # what a handler of the log raises, say: else none were taken any more
            if request is not None:
                request.set_exception(error)
            if _is_final(error) or self._in_a_row > self._settings.tolerate:
                self._has_failed = True
                self._failed(error.__cause__ if isinstance(error.__cause__, SinkBroken) else error)
        except asyncio.CancelledError:
            if request is not None:
                request.set_exception(CheckpointError(NOT_TAKEN))
            raise
        else:
            if request is not None:
                request.set_result(info)

    def _begin_compaction(self) -> None:
        """Beside the next checkpoints, for it may take longer than the time between two; one at a time."""
        if not self._closed and (self._compacting is None or self._compacting.done()):
            self._compacting = asyncio.create_task(self.tables.compact(), name="asyncstream compaction")

    async def finish(self, *, finished: bool) -> None:
        """
        Take the last one, when nothing runs any more; tried again a few times if it fails.

        Args:
            finished: every element accepted was finished.

        Raises:
            CheckpointError: if it failed for good. The one before then stands.
        """
        self._closed = True
        self._wanted.set()
        if self._compacting is not None:
            self._compacting.cancel()
        await self._ended()  # what is under way comes to its end
        if self._has_failed:
            return
        unwritten = [name for name, sink, _ in transactional_sinks(self._wiring) if not sink.is_done()]
        if unwritten:
            log.warning("no last checkpoint: %s did not write all in time", ", ".join(unwritten))
            self._next.refuse()
            return
        pause = PAUSE
        savepoint = self._settings.savepoint or self._next.stays
        for left in reversed(range(self._settings.tolerate + 1)):
            try:
                info = await self._take(finished=finished, savepoint=savepoint)
                self._next.answer(info)
                return
            except CheckpointError as error:
                if _is_final(error) or not left:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def begin_no_more(self) -> None:
        """
        The job has failed: steps may have lost what they were doing, and no checkpoint may tell of that. One
        that was captured before comes to its end.
        """
        self._has_failed = True
        self._wanted.set()
        self._next.refuse()

    def give_up(self) -> None:
        """Take no more; the one under way is abandoned, and that is no failure."""
        self._closed = True
        for task in (self._compacting, self._task):
            if task is not None:
                task.cancel()

    async def close(self) -> None:
        """Give up, and wait for it."""
        self.give_up()
        await self._ended()
        self._next.refuse()

    async def _ended(self) -> None:
        if tasks := {task for task in (self._compacting, self._task) if task is not None}:
            await asyncio.wait(tasks)

    async def leave(self) -> None:
        """Let another job write, when the sinks of this one are closed."""
        if self.journal is not None:
            await self.journal.close()
        await self.tenure.end()

    def _sign(self, lease: Lease) -> Writer:
        """Sinks and sources write for this job, and show from now on until when it has its lease."""
        return signed(self._wiring, Writer(lease, self._settings.keep, self._settings.ahead))

    def _lose(self, error: CheckpointError) -> None:
        """Another job writes now: this one must not even try to finish."""
        self._has_failed = True
        self._failed(error)

    def metrics(self) -> dict[str, int]:
        """Counters; of the last checkpoint its number, size, duration, and how long the loop stood still."""
        return {**self._counts, "failed_in_a_row": self._in_a_row}

    # ------------------------------------------------------------------ one checkpoint

    async def _take(self, *, finished: bool = False, savepoint: bool = False) -> CheckpointInfo:
        self._number += 1
        number, began = self._number, asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                info = await self._save(number, finished, savepoint)
                for name, sink, _ in transactional_sinks(self._wiring):
                    self._waits_for = f"step {name!r} to commit"
                    await sink.commit(number)
        except Exception as error:
            self._counts["failed"] += 1
            self._in_a_row += 1
            if not isinstance(error, CheckpointError) or isinstance(error, StoreFailed):
                text = str(error) if isinstance(error, StoreFailed) else describe_error(error)
                if isinstance(error, TimeoutError):
                    seconds = self._settings.timeout_seconds
                    text = f"it took too long: after {seconds:g} s it was waiting for {self._waits_for}"
                failure = CheckpointError(f"checkpoint {number} failed: {text}")
                failure.__cause__ = error
                error = failure
            fields = {"pipeline": self._pipeline, "checkpoint": number, "failed_in_a_row": self._in_a_row}
            log.warning("pipeline %r: %s", self._pipeline, error, exc_info=error, extra=fields)
            raise error
        self._in_a_row = 0
        self.last = info
        rest = {"acknowledge what is done": self._acknowledge, "let old checkpoints go": self._let_go}
        for doing, afterwards in rest.items():
            try:
                async with asyncio.timeout(self._settings.timeout_seconds):
                    await afterwards()
            except TimeoutError:  # the next time it is tried again
                log.warning("pipeline %r: it took too long to %s", self._pipeline, doing)
        self._counts["taken"] += 1
        self._counts["number"], self._counts["bytes"] = number, info.size
        now = asyncio.get_running_loop().time()
        self._counts["duration_ms"] = round((now - began) * 1000)
        self.durations.add(now - began, now)
        self.sizes.add(info.size)
        return info

    async def _save(self, number: int, finished: bool, savepoint: bool) -> CheckpointInfo:
        self._waits_for = "steps to do what event time has made due"
        await self._wiring.wait_for_work(self._settings.timeout_seconds / 2)  # the rest is to be kept in time
        self._waits_for = "what steps remembered before to be encoded"
        async with self.tables.cutting:
            draft, positions = await self._draft(number, finished, savepoint)
        self._waits_for = f"the store, {self._settings.store}"
        async with self.tables.storing:
            await self._history.write(self.tenure.lease, draft)
        self.tables.committed(draft.info.stored)
        self._note_positions(number, positions)
        return draft.info

    async def _draft(self, number: int, finished: bool, savepoint: bool) -> tuple[Draft, dict[str, Any]]:
        """Cut, and encode; also where sources stand that are to forget what is before."""
        await self.tables.settle()
        self._wiring.catch_up()
        if self._has_failed:
            raise CheckpointError("the job has failed")
        began = asyncio.get_running_loop().time()
        created_ms = self._clock.now_ms()
        sinks = [(name, sink.cut(number)) for name, sink, _ in transactional_sinks(self._wiring)]
        captured = self._captures.take(self._wiring)
        if self.journal is not None:
            self.journal.rotate(number)
        self._finished = {name: driver.finished() for name, driver in self._wiring.sources.items()}
        positions = {name: self._wiring.sources[name].position() for name in self._forgetful}
        now = asyncio.get_running_loop().time()
        self._counts["pause_us"] = round((now - began) * 1e6)
        self.pauses.add(now - began, now)
        for name, waiting in sinks:
            self._waits_for = f"step {name!r} to prepare"
            position = await waiting
            if position is None:  # which would be taken for the very first start
                raise CannotKeep(f"step {name!r}: the sink's prepare() gave no position")
            captured[name] = ("sink", self._captures.held(name, freeze(position)))
        self._waits_for = "what steps remember to be encoded"
        size = sum(frozen.size for _, frozen in captured.values())
        about = CheckpointInfo(
            id=number,
            pipeline=self._pipeline,
            created_ms=created_ms,
            codec=self._codec.name,
            finished=finished,
            size=0,
            steps={},
            lease=self.tenure.lease.number,
            savepoint=savepoint,
        )
        encode = partial(self._captures.encode, captured, about)
        if size <= INLINE_BYTES and self.tables.has_cut_little():
            draft = encode()
        else:
            await asyncio.sleep(0)  # the capture has held the loop; now the others, before a thread does
            draft = await self.tables.aside(encode)
        await self.tables.merge()
        return draft, positions

    def _note_positions(self, number: int, positions: Mapping[str, Any]) -> None:
        """Remember where the sources stood that are to be told when no older checkpoint is left."""
        self._positions[number] = {
            name: position for name in self._forgetful if (position := positions.get(name)) is not None
        }

    async def _acknowledge(self) -> None:
        for name, position in self._finished.items():
            await self._wiring.sources[name].acknowledge(position)

    async def _let_go(self) -> None:
        try:
            async with self.tables.storing:
                oldest = (await self._history.let_go(self.tenure.lease, self._settings.keep))[0]
        except Exception as error:  # of the store; too many checkpoints do no harm
            log.warning("pipeline %r: old checkpoints could not be deleted: %s", self._pipeline, error)
            return
        if self.journal is not None:
            try:
                await self.journal.forget(oldest)
            except Exception as error:  # of the disk
                log.warning("pipeline %r: an old journal could not be deleted: %s", self._pipeline, error)
        # one that an earlier job left, and this one has not read, may go back further
        for name, position in self._positions.get(oldest, {}).items():
            try:
                with naming(name, SourceError):
                    await self._wiring.sources[name].source.forget(position)
            except SourceError as error:
                log.warning("pipeline %r: a source could not forget what is done: %s", self._pipeline, error)
        self._positions = {number: kept for number, kept in self._positions.items() if number >= oldest}


def _journal_of(
    settings: Checkpoints, graph: Graph, codec: Codec, failed: Callable[[BaseException], None]
) -> Journal | None:
    uses: dict[str, JournalUse] = {}
    for step in graph:
        use = step.spec.journal if isinstance(step, OperatorStep) else None
        if use is None or (use.by_default and not settings.journals_by_default):
            continue
        if not use.by_default or not use.by_position or graph.has_origins(step.inputs):
            uses[step.name] = use
    if not uses:
        return None
    journal = Journal(settings.journal_files(), codec, settings.key, failed)
    for name, use in uses.items():
        journal.add_step(name, use.fingerprint, waits=use.waits, by_default=use.by_default)
    return journal
