"""
The journal of finished calls: what has been paid for since the last checkpoint is not paid for again.

Theory of operation
-------------------
A checkpoint holds the results of the calls that had ended by then. Those that end later are appended to a
file before they are emitted, all that ended in one pass of the event loop in one write. After a crash the
elements behind the checkpoint are read again, with the same origins; a call whose result is in the journal is
not made, and its result goes on as if it had been.

A file belongs to the time between two checkpoints: `calls-<checkpoint>-<lease>` holds what ended after that
checkpoint was captured, in the process that had that lease. A job that goes on from a checkpoint reads the
files of that one and of later ones, which may not have become safe; a checkpoint that is deleted takes its
files with it. So the journal is as long as what happens between the checkpoints that are kept. What has been
read and not asked for when the next checkpoint is captured, because the source has not come to it yet, is
written again behind it.

    file      frames, one after the other
    frame     magic 4 bytes, length of the payload 4, its digest 16, payload
    payload   by the codec: [step, fingerprint of its function, origins, are single, results],
              or [step, fingerprint, origins, False, failed attempts, "retried"]

Origins, which are alike, are written by columns: a list for each of their parts, or the part itself where it
is the same in all. Where each call gave one result, the results stand there themselves, else in a list for
each call. So one frame is a few lists, however many calls it is about, which saves half of the time and of
the bytes.

A process that is killed leaves whole frames: each is one write. A machine that loses its power may leave half
a frame at the end, whose result was not emitted, or which the journal did not promise to keep: it is ignored.
Half a frame with a whole one behind it is damage, and refused. With the checkpoints' key the digest is under
that key, so a codec that runs what the bytes say is given no foreign bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain, repeat
from struct import Struct
from typing import Any, Final

from asyncstream.checkpoint.journal_files import JournalFiles
from asyncstream.codec import Codec
from asyncstream.errors import CheckpointError, describe_error
from asyncstream.operators.call_log import Failures
from asyncstream.operators.origins import Origin

__all__ = ("Journal", "StepJournal", "ended_in", "frame", "frames", "grouped")

log = logging.getLogger("asyncstream.checkpoint")

_MAGIC: Final = b"\xa5jr\x01"
PATIENCE: Final = 10
"""Checkpoints for which results of an earlier life are kept while none of them is asked for."""

_HEAD: Final = Struct("<4sI16s")

Ended = tuple[Origin, Sequence[Any]]
"""A call that has ended: for which element, and with which results."""


def _digest(payload: bytes, key: bytes | None) -> bytes:
    secret = b"" if key is None else blake2b(key).digest()
    return blake2b(payload, digest_size=16, key=secret, person=b"call journal").digest()


def frame(payload: bytes, key: bytes | None = None) -> bytes:
    """The bytes of one frame."""
    return _HEAD.pack(_MAGIC, len(payload), _digest(payload, key)) + payload


def frames(data: bytes, what: str, key: bytes | None = None) -> Iterator[bytes]:
    """
    The payloads of a file, up to a tail that is not whole.

    Args:
        what: the file, for the message.

    Raises:
        CheckpointError: if there is a whole frame behind one that is not.
    """
    at = 0
    while at < len(data):
        payload = _payload(data, at, key)
        if payload is None:
            later = data.find(_MAGIC, at + 1)
            while later >= 0:
                if _payload(data, later, key) is not None:
                    raise CheckpointError(
                        f"{what} is damaged at byte {at}, and goes on behind that: results of calls are "
                        "lost. Bring it back from a backup; or delete it, and the calls that it knows of are "
                        "made again"
                    )
                later = data.find(_MAGIC, later + 1)
            log.warning("%s ends in the middle, %d bytes from its end", what, len(data) - at)
            return
        yield payload
        at += _HEAD.size + len(payload)


def _payload(data: bytes, at: int, key: bytes | None) -> bytes | None:
    if len(data) - at < _HEAD.size:
        return None
    magic, length, digest = _HEAD.unpack_from(data, at)
    payload = data[at + _HEAD.size : at + _HEAD.size + length]
    whole = magic == _MAGIC and len(payload) == length and digest == _digest(payload, key)
    return payload if whole else None


def grouped(ended: Sequence[Ended]) -> list[list[Any]]:
    """Calls that have ended as the codec is given them: [origins, are single, results], for each frame."""
    origins, results = zip(*ended, strict=True)
    if len(set(map(len, origins))) > 1:
        by_length: dict[int, list[Ended]] = {}
        for one in ended:
            by_length.setdefault(len(one[0]), []).append(one)
        return [group for alike in by_length.values() for group in grouped(alike)]
    columns = [part[0] if len(set(part)) == 1 else list(part) for part in zip(*origins, strict=True)]
    are_single = set(map(len, results)) == {1}
    given = list(chain.from_iterable(results)) if are_single else list(map(list, results))
    return [[columns, are_single, given]]


def ended_in(group: Sequence[Any]) -> list[Ended]:
    """The opposite of `grouped`, for one frame."""
    columns, are_single, given = group
    parts = [part if isinstance(part, list) else repeat(part, len(given)) for part in columns]
    results = [[one] for one in given] if are_single else given
    return list(zip(zip(*parts, strict=True), results, strict=True))


class Journal:
    """
    The calls of all steps of one run.

    Args:
        files: where it lies.
        codec: how results become bytes.
        key: the checkpoints'.
        failed: told when results could not be brought to the disk.
    """

    def __init__(
        self, files: JournalFiles, codec: Codec, key: bytes | None, failed: Callable[[BaseException], None]
    ) -> None:
        self._files = files
        self._codec = codec
        self._key = key
        self.failed = failed
        self._lease = 0
        self._name = _name_of(0, 0)
        self._steps: dict[str, StepJournal] = {}
        self._waiting: list[Callable[[], None]] = []
        self._syncing: asyncio.Task[None] | None = None

    def add_step(self, name: str, fingerprint: str, *, waits: bool) -> None:
        """Keep the calls of a step; before `load`."""
        self._steps[name] = StepJournal(self, name, fingerprint, waits)

    def step(self, name: str) -> StepJournal | None:
        """The part of one step, if it has one."""
        return self._steps.get(name)

    async def load(self, checkpoint: int | None, lease: int) -> None:
        """
        Take up what has ended since a checkpoint; what ends from now on is of this lease.

        Args:
            checkpoint: the one that the job goes on from; None: it begins at the beginning.

        Raises:
            CheckpointError: if the journal is damaged.
        """
        self._lease = lease
        self._name = _name_of(checkpoint or 0, lease)
        for name in sorted(await self._files.names()) if checkpoint is not None else ():
            number = _checkpoint_of(name)
            if number is None or number < (checkpoint or 0):
                continue
            what = f"the journal {name} in {self._files}"
            for payload in frames(await self._files.read(name), what, self._key):
                step, fingerprint, calls, kind = self._decoded(payload, what)
                known = self._steps.get(step)
                if known is None or known.fingerprint != fingerprint:
                    continue
                if kind:
                    known.remember_retries(calls)
                else:
                    known.remember(calls)

    def _decoded(self, payload: bytes, what: str) -> tuple[str, str, list[Ended], list[str]]:
        try:
            step, fingerprint, columns, are_single, given, *kind = self._codec.decode(payload)
            return step, fingerprint, ended_in((columns, are_single, given)), kind
        except Exception as error:  # of a class that is there no more
            raise CheckpointError(f"{what} cannot be read: {describe_error(error)}") from error

    def append(self, step: StepJournal, ended: Sequence[Ended], *kind: str) -> None:
        """Write down calls of a step that have ended, or are "retried"; raises `CheckpointError`."""
        try:
            marks = [step.name, step.fingerprint]
            groups = [self._codec.encode([*marks, *group, *kind]) for group in grouped(ended)]
            self._files.append(self._name, b"".join(frame(payload, self._key) for payload in groups))
        except Exception as error:  # of the disk, or of a value that cannot be kept
            raise CheckpointError(
                f"step {step.name!r}: the journal cannot keep what its calls gave: {describe_error(error)}"
            ) from error

    def rotate(self, checkpoint: int) -> None:
        """A checkpoint is captured at this instant: what was written so far is in it."""
        self._name = _name_of(checkpoint, self._lease)
        for step in self._steps.values():
            step.carry_over()

    async def forget(self, oldest: int) -> None:
        """No start goes on from a checkpoint before this one."""
        for name in await self._files.names():
            number = _checkpoint_of(name)
            if number is not None and number < oldest:
                await self._files.remove(name)

    # ------------------------------------------------------------------ waiting for the disk

    def when_safe(self, then: Callable[[], None]) -> None:
        """Call `then` when all that was appended is on the disk."""
        self._waiting.append(then)
        if self._syncing is None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync(), name="asyncstream journal")

    async def _sync(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                await self._files.sync()
                for then in waiting:
                    then()
        except Exception as error:
            failure = CheckpointError(f"the journal cannot be brought to the disk: {describe_error(error)}")
            failure.__cause__ = error
            self.failed(failure)
        finally:
            self._syncing = None

    async def close(self) -> None:
        """Nothing follows."""
        if self._syncing is not None:
            self._syncing.cancel()
            await asyncio.wait({self._syncing})
        self._files.close()


class StepJournal:
    """
    The calls of one step; a `CallLog`.

    Attributes:
        name: of the step.
        fingerprint: of the function that it calls.
        waits: results may go on only when they are on the disk.
    """

    def __init__(self, journal: Journal, name: str, fingerprint: str, waits: bool) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self.waits = waits
        self._journal = journal
        self._known: dict[Origin, Sequence[Any]] = {}
        self._taken: set[Origin] = set()  # what is written already, in a file of an earlier life
        self._failures: dict[Origin, Failures] = {}  # of an earlier life, not asked for yet
        self._retried: dict[Origin, Failures] = {}  # of calls that have not ended
        self._noted: set[Origin] = set()  # of these, what is not written down yet
        self._idle = 0  # checkpoints since something was taken

    @property
    def known(self) -> Mapping[Origin, Sequence[Any]]:
        return self._known

    def remember(self, ended: Sequence[Ended]) -> None:
        """Calls that ended in an earlier life."""
        self._known.update(ended)

    def take(self, origin: Origin) -> Sequence[Any] | None:
        found = self._known.pop(origin, None) if self._known else None
        if found is not None:
            self._idle = 0
            self._taken.add(origin)
        return found

    def append(self, ended: Sequence[Ended]) -> None:
        if self._taken:
            ended = [pair for pair in ended if pair[0] not in self._taken]
        if ended:
            self._journal.append(self, ended)

    def when_safe(self, then: Callable[[], None]) -> None:
        self._journal.when_safe(then)

    # ------------------------------------------------------------------ attempts

    def remember_retries(self, calls: Sequence[Ended]) -> None:
        """Calls that were being retried in an earlier life; the last that is said of one counts."""
        for origin, failures in calls:
            self._failures[origin] = Failures(*failures)

    def failures(self, origin: Origin) -> Failures | None:
        found = self._failures.pop(origin, None) if self._failures else None
        if found is not None:
            self._idle = 0
            self._retried[origin] = found
        return found

    def note(self, origin: Origin, failures: Failures) -> None:
        self._retried[origin] = failures
        if not self._noted:  # the others that fail in this pass of the loop are written with it
            asyncio.get_running_loop().call_soon(self._write_noted)
        self._noted.add(origin)

    def end_retries(self, origin: Origin) -> None:
        self._retried.pop(origin, None)

    def _write_noted(self) -> None:
        noted = {origin: self._retried[origin] for origin in self._noted if origin in self._retried}
        self._noted.clear()
        try:
            self._write_retries(noted)
        except CheckpointError as error:
            self._journal.failed(error)

    def _write_retries(self, failures: Mapping[Origin, Failures]) -> None:
        if failures:
            self._journal.append(self, list(failures.items()), "retried")

    def carry_over(self) -> None:
        """
        A checkpoint holds what was taken, and calls that are being retried, but not how often they were; the
        rest is kept on, unless asking seems to be over.
        """
        self._taken.clear()
        self._idle += 1
        if self._idle > PATIENCE:
            self._known.clear()
            self._failures.clear()
        if self._known:
            self._journal.append(self, list(self._known.items()))
        self._write_retries(self._failures | self._retried)


def _name_of(checkpoint: int, lease: int) -> str:
    return f"calls-{checkpoint:08}-{lease:08}"


def _checkpoint_of(name: str) -> int | None:
    """Which checkpoint a file follows; None: it is none of the journal's."""
    kind, _, rest = name.partition("-")
    number = rest.partition("-")[0]
    return int(number) if kind == "calls" and number.isdecimal() else None
