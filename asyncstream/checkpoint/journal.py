"""
The journal of finished calls: what has been paid for since the last checkpoint is not paid for again.

Theory of operation
-------------------
Calls that end behind a checkpoint are appended to a file before their results are emitted, all that ended in
one pass of the event loop in one write. After a crash the elements are read again, with the same origins; a
call whose result is in the journal is not made, provided that the element is the same (`journal_checks`).

A file belongs to the time between two checkpoints: `calls-<checkpoint>-<lease>` holds what ended after that
checkpoint was captured, in the process that had that lease. A job that goes on from a checkpoint reads the
files of that one and of later ones, which may not have become safe; a checkpoint that is deleted takes its
files with it. So the journal is as long as what happens between the checkpoints that are kept. What has been
read and not asked for when the next checkpoint is captured, because the source has not come to it yet, is
written again behind it.

    file      frames, one after the other
    frame     magic 4 bytes, length of the payload 4, its CRC 4 or its digest 16, as the magic says, payload
    payload   by the codec: [step, fingerprint of its function, origins, are single, results, checks],
              or [step, fingerprint, origins, False, failed attempts, "retried"]

Origins are written by columns: a list for each of their parts; or the part itself where it is the same in
all; or {"from": the first} where each is the number behind the one before. So are checks. Where each call
gave one result, the results stand there themselves, else in a list for each call.

A process that is killed leaves whole frames: each is one write. A machine that loses its power may leave half
a frame at the end, whose result was not emitted, or which the journal did not promise to keep: it is ignored.
Half a frame with a whole one behind it is damage, and refused if a step has asked for the journal. A CRC
tells damage as well as a digest does, for a fifth of the time. Where checkpoints have a key there is a
digest, under that key, and frames without are not taken: so a codec that runs what the bytes say is given no
foreign bytes.

Steps that do not ask for a journal have one by default, and a job must not fail for that. So what cannot be
kept for such a step, or would be long, ends its journal with a warning; its calls are made again then, as
they were without one. So are those of a file that cannot be read, or is damaged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, compress, repeat
from struct import Struct
from typing import Any, Final
from zlib import crc32

from asyncstream.checkpoint.journal_checks import check, checks
from asyncstream.checkpoint.journal_files import JournalFiles
from asyncstream.codec import Codec
from asyncstream.errors import CheckpointError, describe_error
from asyncstream.operators.call_log import Retried
from asyncstream.operators.origins import Origin

__all__ = ("Journal", "StepJournal", "ended_in", "frame", "frames", "grouped")

log = logging.getLogger("asyncstream.checkpoint")

_MAGIC: Final = b"\xa5jr"
_DIGESTED: Final = _MAGIC + b"\x01"
_SUMMED: Final = _MAGIC + b"\x02"
LARGE: Final = 64 * 1024
"""Bytes that the results of a step may have, on average of those of one turn, to be kept by default."""

PATIENCE: Final = 10
"""Checkpoints for which results of an earlier life are kept while none of them is asked for."""

_HEAD: Final = Struct("<4sI")

Ended = tuple[Origin, Sequence[Any]]
"""A call that has ended: the origin of its element, and the results."""

Kept = tuple[int | None, Sequence[Any]]
"""What is kept of a call of an earlier life: the check of its element, and the results."""


def _sum(payload: bytes, key: bytes | None) -> bytes:
    if key is None:
        return crc32(payload).to_bytes(4, "little")
    secret = blake2b(key).digest()
    return blake2b(payload, digest_size=16, key=secret, person=b"call journal").digest()


def frame(payload: bytes, key: bytes | None = None) -> bytes:
    """The bytes of one frame."""
    return _HEAD.pack(_SUMMED if key is None else _DIGESTED, len(payload)) + _sum(payload, key) + payload


def frames(data: bytes, what: str, key: bytes | None = None) -> Iterator[bytes]:
    """
    The payloads of a file, up to a tail that is not whole; raises `CheckpointError`, which says `what` it is,
    if there is a whole frame behind one that is not.
    """
    at = 0
    while at < len(data):
        payload, end = _payload(data, at, key)
        if payload is None:
            later = data.find(_MAGIC, at + 1)
            while later >= 0:
                if _payload(data, later, key)[0] is not None:
                    raise CheckpointError(
                        f"{what} is damaged at byte {at}, and goes on after that: results of calls are "
                        "lost. Restore it from a backup; or delete it, and the calls that it records are "
                        "repeated"
                    )
                later = data.find(_MAGIC, later + 1)
            log.warning("%s ends in the middle, %d bytes from its end", what, len(data) - at)
            return
        yield payload
        at = end


def _payload(data: bytes, at: int, key: bytes | None) -> tuple[bytes | None, int]:
    """What the frame at a byte holds, None if there is no whole one; and the byte behind it."""
    kind, size = (_SUMMED, 4) if key is None else (_DIGESTED, 16)
    start = at + _HEAD.size + size
    if len(data) < start:
        return None, at
    magic, length = _HEAD.unpack_from(data, at)
    payload = data[start : start + length]
    is_whole = magic == kind and len(payload) == length and _sum(payload, key) == data[start - size : start]
    return payload if is_whole else None, start + length


def grouped(
    origins: Sequence[Origin], results: list[Any], *besides: list[Any], single: bool
) -> list[list[Any]]:
    """
    Calls that have ended as the codec is given them: [origins, are single, results, ...], for each frame.

    Args:
        origins: at least one.
        results: as of `CallLog.append`.
        besides: further columns, with a part for each call.
    """
    try:
        parts = list(zip(*origins, strict=True))
    except ValueError:  # they are not of one length
        groups = []
        for length in sorted(set(map(len, origins))):
            alike = [len(origin) == length for origin in origins]
            columns = [[*compress(column, alike)] for column in (results, *besides)]
            groups += grouped([*compress(origins, alike)], *columns, single=single)
        return groups
    if not single and set(map(len, results)) == {1}:
        single, results = True, list(chain.from_iterable(results))
    given = results if single else list(map(list, results))
    return [[list(map(_column, parts)), single, given, *map(_column, besides)]]


def _column(parts: Sequence[Any]) -> Any:
    """What is written for texts, numbers or None."""
    first, last, count = parts[0], parts[-1], len(parts)
    if first == last:  # first, as numbers differ, and need not all be compared
        return first if parts.count(first) == count else list(parts)
    parts = list(parts)
    if type(first) is int and type(last) is int and last - first == count - 1:  # as a rule, a run
        return {"from": first} if parts == list(range(first, last + 1)) else parts
    return parts


def _parts(column: Any, count: int) -> Iterable[Any]:
    """The opposite of `_column`."""
    if isinstance(column, list):
        return column
    if isinstance(column, dict):
        return range(column["from"], column["from"] + count)
    return repeat(column, count)


def ended_in(group: Sequence[Any]) -> list[Ended]:
    """The opposite of `grouped`, for one frame."""
    columns, are_single, given, *_ = group
    parts = [_parts(column, len(given)) for column in columns]
    results = [[one] for one in given] if are_single else given
    return list(zip(zip(*parts, strict=True), results, strict=True))


class Journal:
    """
    The calls of all steps of one run.

    Args:
        key: the checkpoints'.
        failed: told when results could not be brought to the disk.
    """

    def __init__(
        self, files: JournalFiles, codec: Codec, key: bytes | None, failed: Callable[[BaseException], None]
    ) -> None:
        self._files = files
        self.codec = codec
        self.key = key
        self.failed = failed
        self._prefix = ""
        self._lease = 0
        self._name = self._name_of(0)
        self._steps: dict[str, StepJournal] = {}
        self._waiting: list[Callable[[], None]] = []
        self._syncing: asyncio.Task[None] | None = None

    def add_step(self, name: str, fingerprint: str, *, waits: bool, by_default: bool = False) -> None:
        """Keep the calls of a step, which has not asked for it if `by_default`; before `load`."""
        self._steps[name] = StepJournal(self, name, fingerprint, waits, by_default)

    @property
    def steps(self) -> Collection[str]:
        """The names of those whose calls are kept."""
        return self._steps.keys()

    def step(self, name: str) -> StepJournal | None:
        """The part of one step, if it has one."""
        return self._steps.get(name)

    async def load(self, checkpoint: int | None, lease: int, store: str | None = None) -> None:
        """
        Take up what has ended since a checkpoint; what ends from now on is of this lease.

        Args:
            checkpoint: the one that the job goes on from; None: it begins at the beginning.
            store: tells the checkpoints' store from others whose journals may lie in the same place.

        Raises:
            CheckpointError: if it is damaged or cannot be read, and a step has asked for it.
        """
        self._prefix = "" if store is None else f"{store}-"
        self._lease = lease
        self._name = self._name_of(checkpoint or 0)
        if checkpoint is not None:
            with self._bearing(f"the journal in {self._files}"):
                for name in sorted(await self._files.names()):
                    number = self._checkpoint_of(name)
                    if number is not None and number >= checkpoint:
                        await self._load_file(name)

    async def _load_file(self, file: str) -> None:
        what = f"the journal {file} in {self._files}"
        with self._bearing(what):
            for payload in frames(await self._files.read(file), what, self.key):
                with self._bearing(what):
                    name, fingerprint, *group = self.codec.decode(payload)
                    step = self._steps.get(name)
                    if step is not None and step.fingerprint == fingerprint:
                        step.remember(group)

    @contextmanager
    def _bearing(self, what: str) -> Iterator[None]:
        """What cannot be read in this block is made again, if no step has asked for a journal."""
        try:
            yield
        except Exception as error:  # of the disk, or damage, or of a class that is there no more
            is_told = isinstance(error, CheckpointError)
            text = str(error) if is_told else f"{what} cannot be read: {describe_error(error)}"
            if any(not step.by_default for step in self._steps.values()):
                if is_told:
                    raise
                raise CheckpointError(text) from error
            log.warning("%s; as no step has asked for it, its calls are made again", text)

    def append(self, frames: bytes) -> None:
        """Write down what has ended."""
        self._files.append(self._name, frames)

    def rotate(self, checkpoint: int) -> None:
        """A checkpoint is captured at this instant: what was written so far is in it."""
        self._name = self._name_of(checkpoint)
        for step in self._steps.values():
            step.carry_over()

    async def forget(self, oldest: int) -> None:
        """No start goes on from a checkpoint before this one."""
        for name in await self._files.names():
            number = self._checkpoint_of(name)
            if number is not None and number < oldest:
                await self._files.remove(name)

    def _name_of(self, checkpoint: int) -> str:
        return f"{self._prefix}calls-{checkpoint:08}-{self._lease:08}"

    def _checkpoint_of(self, name: str) -> int | None:
        """Which checkpoint a file follows; None: it is none of this journal's."""
        kind, _, rest = name.removeprefix(self._prefix).partition("-")
        number = rest.partition("-")[0]
        is_ours = name.startswith(self._prefix) and kind == "calls" and number.isdecimal()
        return int(number) if is_ours else None

    # ------------------------------------------------------------------ waiting for the disk

    def when_safe(self, then: Callable[[], None]) -> None:
        """Call `then` when all that was appended is on the disk."""
        self._waiting.append(then)
        if self._syncing is None or self._syncing.done():
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

    async def close(self) -> None:
        """Nothing follows."""
        if self._syncing is not None:
            self._syncing.cancel()
            await asyncio.wait({self._syncing})
        self._files.close()


@dataclass(eq=False)
class StepJournal:
    """
    The calls of one step; a `CallLog`.

    Attributes:
        name: of the step.
        fingerprint: of the function that it calls.
        waits: results may go on only when they are on the disk.
        by_default: the step has not asked for it: what cannot be kept is not.
    """

    _journal: Journal
    name: str
    fingerprint: str
    waits: bool
    by_default: bool = False
    _has_ended: bool = False  # by default, and something could not be kept
    _has_warned: bool = False  # of elements that are not those of an earlier life
    _known: dict[Origin, Kept] = field(default_factory=dict)
    _taken: set[Origin] = field(default_factory=set)  # what is written already, in a file of an earlier life
    _failures: dict[Origin, Retried] = field(default_factory=dict)  # of an earlier life, not asked for yet
    _retried: dict[Origin, Retried] = field(default_factory=dict)  # of calls that have not ended
    _noted: set[Origin] = field(default_factory=set)  # of these, what is not written down yet
    _idle: int = 0  # checkpoints since something was taken

    @property
    def known(self) -> Mapping[Origin, object]:
        return self._known

    def remember(self, group: Sequence[Any]) -> None:
        """Calls of an earlier life, those of one frame; the last that is said of one counts."""
        *_, results, last = group  # checks, or what kind of frame this is
        ended = ended_in(group)
        if last == "retried":
            self._failures.update((origin, Retried(*failures)) for origin, failures in ended)
            return
        for (origin, found), element in zip(ended, _parts(last, len(results)), strict=True):
            self._known[origin] = element, found

    def take(self, origin: Origin, element: Any) -> Sequence[Any] | None:
        found = self._known.pop(origin, None) if self._known else None
        if found is None:
            return None
        self._idle = 0
        if found[0] not in (None, check(element, self._journal.codec)):
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "step %r: the source does not give the elements again that it gave before; calls for "
                    "others are made, though there is a result for their positions",
                    self.name,
                )
            return None
        self._taken.add(origin)
        return found[1]

    def append(
        self, origins: Sequence[Origin], elements: Sequence[Any], results: list[Any], *, single: bool
    ) -> None:
        if self._taken:
            new = [origin not in self._taken for origin in origins]
            origins, elements, results = ([*compress(part, new)] for part in (origins, elements, results))
        if origins:
            self._keep(origins, results, checks(elements, self._journal.codec), single=single)

    def _keep(self, origins: Sequence[Origin], *columns: list[Any], single: bool, kind: str = "") -> None:
        """
        Write down calls that have ended, or are "retried".

        Args:
            columns: results and checks; or failed attempts.

        Raises:
            CheckpointError: if that cannot be done, and the step has asked for it.
        """
        if self._has_ended:
            return
        journal, marks, kinds = self._journal, [self.name, self.fingerprint], [kind] if kind else []
        try:
            groups = grouped(origins, *columns, single=single)
            payloads = [journal.codec.encode([*marks, *group, *kinds]) for group in groups]
            data = b"".join([frame(payload, journal.key) for payload in payloads])
            if self.by_default and len(data) > LARGE * len(origins):
                raise ValueError(f"more than {LARGE // 1024} KiB for each; journal=True keeps them")
            journal.append(data)
        except Exception as error:  # of the disk, or of a value that cannot be kept
            text = f"step {self.name!r}: the journal cannot keep what its calls gave: {describe_error(error)}"
            if not self.by_default:
                raise CheckpointError(text) from error
            self._has_ended = True
            log.warning(
                "%s; from now on its calls are not written down, and those after a checkpoint are made again "
                "after a crash (journal=False says that they may be)",
                text,
            )

    def when_safe(self, then: Callable[[], None]) -> None:
        self._journal.when_safe(then)

    # ------------------------------------------------------------------ attempts

    def retried(self, origin: Origin) -> Retried | None:
        found = self._failures.pop(origin, None) if self._failures else None
        if found is not None:
            self._idle = 0
            self._retried[origin] = found
        return found

    def note(self, origin: Origin, failures: Retried) -> None:
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

    def _write_retries(self, failures: Mapping[Origin, Retried]) -> None:
        if failures:
            self._keep(list(failures), list(failures.values()), single=False, kind="retried")

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
            known = self._known.values()
            checked, results = [element for element, _ in known], [results for _, results in known]
            self._keep(list(self._known), results, checked, single=False)
        self._write_retries(self._failures | self._retried)
