"""
Whose a file is that a sink with checkpoints writes.

Beside the file lies a small record, `.<name>.sink`: the lease under which it is written, an identifier of the
run that began it, how long it was then, and how long when it was closed, or found after a crash. On a disk it
was last changed, says its time, at that moment until which the job has its lease. Two locks of the operating
system (`flock`) go with it: one on the record, held while a sink takes the file over, and one on the file
itself, held as long as it is open.

The record is changed where it is: another file of its name would have another lock. So that one that was cut
off in the middle is not lost, what it is to become is first brought to the disk beside it, `.<name>.next`.

A process that is stopped keeps its locks, which cannot be broken; when it wakes up, it may still be in the
middle of a write. So a follower that cannot be sure that the one before is gone does not write into the same
file: it makes a copy of what the checkpoint knows of, and gives it the name. What the other one still writes
goes into a file that has no name any more, and when it looks next, it finds that the file is not its own.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, BinaryIO, Final

from asyncstream.aside import aside
from asyncstream.connectors.cancellation import carried_through
from asyncstream.connectors.files.storage import is_remote, storage_of
from asyncstream.connectors.standing import taken_over
from asyncstream.connectors.writer import Writer
from asyncstream.errors import SinkBroken, SinkError, describe_error, told_as
from asyncstream.filesystem.folders import sync_folder
from asyncstream.filesystem.locks import lock
from asyncstream.filesystem.own_files import open_own
from asyncstream.lease import Lease, presence

__all__ = ("RECORD_BYTES", "Claim", "Record", "claim_of", "fenced", "lost")

RECORD_BYTES: Final = len("..sink")
"""By which the name of a record is longer than that of its file."""

PATIENCE: Final = 5.0
"""
Seconds in which another process may end what it does with the record: one that wakes up, and has been
followed, looks at it once more and leaves, in milliseconds.
"""

_LOOK_AGAIN: Final = 0.02
"""Seconds between two looks whether it has."""

_COPIED: Final = 1 << 20
"""Bytes that are copied in one go."""


@dataclass(frozen=True, slots=True)
class Record:
    """
    What lies beside a file.

    Attributes:
        run: an identifier of the run that began to write it.
        base: bytes that were there before.
        lease: of the job that writes it, as JSON; None: of a sink that was used without a job.
        closed: its length when it was closed, or when another sink came to it after a crash; None while it
            is written.
        fence: the number of a later job of the same store that is about to take over; 0: there is none.
    """

    run: str
    base: int
    lease: str | None = None
    closed: int | None = None
    fence: int = 0

    def holder(self) -> Lease | None:
        """The lease of the job that writes it, or wrote it last."""
        return None if self.lease is None else Lease.from_json(self.lease)

    def is_of(self, other: Record) -> bool:
        """Whether it belongs to the same job as `other`, and none has put up its fence between them."""
        lease = self.holder()
        is_same = other.lease is None if lease is None else lease.is_same(other.holder())
        return is_same and self.fence == other.fence

    def is_left(self) -> bool:
        """Whether it is certain that no process writes it any more."""
        lease = self.holder()
        return lease is None or lease.released or presence(lease.holder) == "dead"


class Claim:
    """
    The record of one file.

    Attributes:
        errors: what is raised where it cannot be read or written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._storage = storage_of(path)
        self.errors = self._storage.errors
        self._record: Record | None = None

    @property
    def is_held(self) -> bool:
        """Whether the file was taken and not left."""
        return self._record is not None

    @property
    def file(self) -> str:
        """The file itself, behind all links."""
        return self._storage.behind_links(self._path)

    @property
    def record(self) -> str:
        """Where it lies."""
        return self._storage.beside(self.file, ".sink")

    @property
    def _next(self) -> str:
        return self._storage.beside(self.file, ".next")

    def read(self) -> Record | None:
        """
        What lies beside the file; None if there is nothing, or nothing that makes sense. Raises `SinkError`
        if that cannot be seen, for an object store does not answer say: somebody may be writing.
        """
        return self._record_of(self._content(self.record))

    def _record_of(self, content: bytes | None) -> Record | None:
        """What lies there with this content."""
        if content is None:
            return None
        record = _record_in(content) or _record_in(self._content(self._next) or b"")
        lease = None if record is None else record.holder()
        if record is not None and lease is not None and lease.until_ms < (until_ms := self._until_ms()):
            record = replace(record, lease=lease.renewed(until_ms).to_text())
        return record

    def is_damaged(self) -> bool:
        """Whether something lies beside the file that makes no sense: whose it is, it no longer says."""
        content = self._content(self.record)
        return bool(content) and self._record_of(content) is None

    def _content(self, path: str) -> bytes | None:
        try:
            with self._storage.read(path) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except self.errors as error:
            raise SinkError(f"cannot see who writes {self._path}: {describe_error(error)}") from error

    def _until_ms(self) -> int:
        """What `show` has set, or less."""
        return os.stat(self.record).st_mtime_ns // 1_000_000

    def show(self, writer: Writer | None) -> None:
        """Have it seen until when the job that writes has its lease; nothing else changes, whosever it is."""
        if writer is not None:
            self._show_until(writer.lease)

    def _show_until(self, lease: Lease) -> None:
        with suppress(OSError):  # it only tells others to wait
            os.utime(self.record, ns=2 * (lease.until_ms * 1_000_000,))

    def left_to(self, writer: Writer | None) -> Record | None:
        """As `read`; raises `SinkError` if whose the file is goes on, or may go on."""
        record = self.read()
        if writer is not None and record is not None:
            writer.check_follows(record.holder(), self._path, record.fence)
        return record

    @staticmethod
    def stays(record: Record | None, writer: Writer | None) -> bool:
        """Whether what is behind the checkpoint stays, as `Writer.keeps_results_of` says."""
        return record is not None and writer is not None and writer.keeps_results_of(record.holder())

    def check_left(self) -> None:
        """For who writes without a record of its own; raises `SinkError` if a job goes on that has one."""
        record = self.read()
        lease = None if record is None else record.holder()
        if record is not None and lease is not None and not record.is_left():
            raise SinkError(
                f"{self._path} is written to by {lease.holder}, with checkpoints: only one job at a time "
                f"may write; stop that process first, or delete {self.record} if it is gone"
            )

    @contextmanager
    def taking(self) -> Iterator[None]:
        """While this goes on, no other sink can take the file. It may block for `PATIENCE` seconds."""
        until = time.monotonic() + PATIENCE
        with open(self.record, "ab", opener=_own) as file:
            while not lock(file):
                if time.monotonic() >= until:
                    raise SinkError(
                        f"{self._path} is being taken over by another process at this moment; if that "
                        "lasts, a process was stopped while it did something there: end it, or have it go on"
                    )
                time.sleep(_LOOK_AGAIN)
            yield

    def fence(self, writer: Writer) -> None:
        """Have jobs that `writer` follows in its store write nothing more; all else stays as it is."""
        if self.read() is None:  # no earlier writer could come back
            return
        with self.taking():
            record = self.read()
            if record is not None and writer.fences(record.holder(), record.fence):
                self._put(replace(record, fence=writer.lease.number))

    def take(self, run: str, base: int, writer: Writer | None) -> None:
        """Write down whose it is now, see `Record`; in `taking`."""
        self._record = Record(run, base, None if writer is None else writer.lease.to_text())
        self._put(self._record)

    def _put(self, record: Record) -> None:
        data = json.dumps(asdict(record)).encode()
        _write(self._next, "wb", data)
        sync_folder(os.path.dirname(self._next))
        _write(self.record, "rb+", data)
        lease = record.holder()
        if lease is not None:  # a write shows the time of the disk, whose clock may be ahead
            self._show_until(lease)
        os.unlink(self._next)

    def check_record(self) -> None:
        """See whether the record is still that of this sink; raises `SinkBroken` if not."""
        content = self._content(self.record)
        found = self._record_of(content)
        if self._record is None or (found is not None and found.is_of(self._record)):
            return
        if found is not None:
            raise taken_over(self._path, None if found.fence else found.holder())
        if not self._storage.exists(self._path):
            raise self._gone()
        state = "cannot be read" if content else "is gone"
        raise SinkBroken(
            f"{self.record}, which says whose {self._path} is, {state}, so another job may write there: this "
            "one writes nothing more"
        )

    def _gone(self) -> SinkBroken:
        return SinkBroken(f"{self._path} was deleted, moved or replaced by another file while it was written")

    def check_ours(self, file: BinaryIO) -> None:
        """
        See whether `file`, which this sink has open, is still the one of that name, and its own; raises
        `SinkBroken` if not.
        """
        self.check_record()
        try:
            is_same = os.path.samestat(os.stat(self.file), os.fstat(file.fileno()))
        except OSError:
            is_same = False
        if not is_same:
            raise self._gone()

    def release(self, closed: int) -> None:
        """Leave the file, which has so many bytes, to the next job, if it is this one's."""
        record, self._record = self._record, None
        if record is None:
            return
        with suppress(SinkError, *self.errors), self.taking():
            found = self.read()
            if found is not None and found.is_of(record):
                lease = record.holder()
                given_back = None if lease is None else lease.given_back().to_text()
                self._put(replace(record, lease=given_back, closed=closed))

    def note_length(self, length: int) -> None:
        """
        Write down how long the file is that a job left which has died: what comes behind that is not its own.
        """
        record = self.read()
        if record is not None and record.closed is None:
            with self.taking():
                self._put(replace(record, closed=length))

    def has_run_out(self, record: Record | None, writer: Writer | None) -> bool:
        """Whether a file that another process holds open may be taken from it all the same."""
        last = None if record is None else record.holder()
        if last is None or writer is None:
            return False
        return last.place == writer.lease.place and last.number < writer.lease.number

    def replace_by_copy(self, length: int) -> None:
        """Give the file's name to a copy of its first `length` bytes."""
        copy = f"{self.file}.{os.urandom(4).hex()}.unfinished"
        try:
            with open(self.file, "rb") as source, open(copy, "xb") as target:
                while length and (data := source.read(min(length, _COPIED))):
                    length -= len(data)
                    target.write(data)
                target.flush()
                os.fsync(target.fileno())
            shutil.copymode(self.file, copy)
            os.replace(copy, self.file)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(copy)


class _RemoteClaim(Claim):
    """
    The record of something in an object store, which has no locks.

    So one takes over what another one writes at the same moment unseen. The checkpoint store keeps jobs that
    use it apart; the record keeps out those that were followed, from the next look on.
    """

    def _until_ms(self) -> int:
        return 0

    def show(self, writer: Writer | None) -> None:
        pass

    @contextmanager
    def taking(self) -> Iterator[None]:
        yield

    def _put(self, record: Record) -> None:
        with self._storage.create(self.record) as file:
            file.write(json.dumps(asdict(record)).encode())


def _record_in(content: bytes) -> Record | None:
    """The record that was written down so; None: that makes no sense."""
    try:
        found: dict[str, Any] = json.loads(content)
        record = Record(**found)
        record.holder()
    except (ValueError, TypeError, RecursionError):
        return None
    return record


def _write(path: str, mode: str, data: bytes) -> None:
    """Have this in a file, and on the disk."""
    with open(path, mode, opener=_own) as file:
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _own(path: str, flags: int) -> int:
    """With the rights that a file of the sink itself has."""
    return open_own(path, flags, 0o666)


def claim_of(path: str) -> Claim:
    """The record of a file on a disk, or in an object store."""
    return _RemoteClaim(path) if is_remote(path) else Claim(path)


def lost(said: object, is_kept: bool) -> SinkBroken:
    """The error of a sink that cannot be sure of what it has written; whether its job keeps checkpoints."""
    again = "; what was written since the last checkpoint may be lost, and is written again by the next run"
    return SinkBroken(f"{said}{again if is_kept else ''}")


async def fenced(claim: Claim, writer: Writer) -> None:
    """
    `TransactionalSink.fence` for a sink with such a claim; raises `SinkError` if the record cannot be
    written, or another process takes the file over at this moment.
    """
    with told_as(SinkError, f"write the record of {claim.file}", *claim.errors):
        await carried_through(aside(lambda: claim.fence(writer)))
