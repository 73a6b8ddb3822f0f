"""
Checkpoints as files of a directory.

A file is written under another name, brought to the disk, and given its name; then the directory is brought
to the disk. So a file with such a name is whole, unless the disk itself lost something. What could not be
brought to the disk is written anew the next time, into a new file: a second fsync says nothing about what the
first one failed to write.

The lease is a file, too, and the number is in its name: `lease-00000007`. It is taken by making the file with
the next number, which only one process can, and lost by all that find a number larger than theirs. There are
no locks, which a stopped process would hold for ever. A process may be stopped between its last look and the
moment at which its manifest gets its name. It has written the manifest before that look, so its follower,
which takes the lease and then deletes all that has no name yet, leaves it nothing to give a name to: what the
follower then sees is all that there will ever be of those before it.

An empty file `newest-00000042` says which manifest must be there. One that is lost leaves no other trace: so
it is seen that something is missing, and an older one is not taken for the newest.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from asyncstream.aside import done_aside
from asyncstream.checkpoint.journal_files import FolderFiles
from asyncstream.checkpoint.stores import CheckpointStore, Manifests, lost, manifests_by, missing, time_ms
from asyncstream.errors import CheckpointError, DamagedCheckpoint, LeaseLost, describe_error
from asyncstream.filesystem.folders import contents, lasting, missing_folder, sync_folder
from asyncstream.lease import Holder, Lease, following
from asyncstream.shown import Shown
from asyncstream.validation import file_path, refuse

__all__ = ("DirectoryStore", "name_file")

_ENDING = ".checkpoint"
_PART = "part-"
_LEASE = "lease-"
_NEWEST = "newest-"
_UNFINISHED = ".unfinished"

_LOST = frozenset(
    getattr(errno, name)
    for name in ("ENOENT", "EIO", "EBADMSG", "EUCLEAN", "EISDIR", "ELOOP", "ENXIO")
    if hasattr(errno, name)  # not every system knows all of them
)
"""What reading a file ends in whose contents are gone, and not only out of reach for now."""


# by name, for pyright takes no decorated method for an async def of the protocol
class DirectoryStore(CheckpointStore, Shown):
    """
    Keeps checkpoints in a directory: manifests as `00000042.checkpoint`, large parts as `part-...`.

    Args:
        path: the directory, on a disk; made when a job starts, in one that is there.

    Raises:
        PipelineError: if there is something else at `path`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._shown = file_path("path", path, "a directory")
        self._path = Path(lasting(self._shown))
        if "://" in str(path):
            raise refuse("path", "the path of a directory on a disk", path, "checkpoints need one")
        if os.path.exists(path) and not os.path.isdir(path):
            raise refuse("path", "the path of a directory", path, "there is a file")

    def __str__(self) -> str:
        return self._shown

    def journal_files(self) -> FolderFiles:
        """Where a journal of finished calls is kept: files beside the checkpoints."""
        return FolderFiles(self._path)

    # ------------------------------------------------------------------ the lease

    @done_aside
    def acquire(self, holder: Holder, seconds: float) -> Lease:
        with self._usable():
            return self._acquire(holder, seconds)

    def _acquire(self, holder: Holder, seconds: float) -> Lease:
        while True:
            numbers = self._numbers(_LEASE)
            number = max(numbers, default=0)
            last = self._lease(number)
            if last is None:
                # lost; the one before it, which it has followed, tells which place this is
                before = map(self._lease, reversed(numbers))
                last = next((lease.renewed(0) for lease in before if lease is not None), None)
            lease = following(last, holder, seconds, time_ms(), str(self), number)
            if not self._write_lease(lease, new=True):
                continue  # another process was faster
            sync_folder(self._path)
            for old in numbers[:-1]:
                # the one before stays, so that a listing of the directory meanwhile shows one of the two
                self._file(old, _LEASE).unlink(missing_ok=True)
            self._clear(lease)
            return lease

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Errors in this block say that the directory cannot be used."""
        try:
            yield
        except OSError as error:
            folder = missing_folder(str(self._path))
            why = describe_error(error) if folder is None else f"there is no directory {folder}"
            raise CheckpointError(f"cannot keep checkpoints in {self._path}: {why}") from error

    def _lease(self, number: int) -> Lease | None:
        """
        That of a number, None if it is lost; raises `OSError` if it is out of reach: its holder may go on.
        """
        try:
            return Lease.from_json(contents(self._file(number, _LEASE)))
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in _LOST:
                raise
            return None

    def _write_lease(self, lease: Lease, *, new: bool) -> bool:
        """Write it down; False if there is one of this number that should be `new`, or of a later one."""
        with self._written(f"{_LEASE}{lease.number:08}", lease.to_json()) as temporary:
            try:
                (name_file if new else os.replace)(temporary, self._file(lease.number, _LEASE))
            except (FileExistsError, FileNotFoundError):  # who has followed has cleared it away
                return False
        return True

    @done_aside
    def renew(self, lease: Lease, seconds: float) -> None:
        self._check(lease)
        if not self._write_lease(lease.renewed(time_ms() + round(seconds * 1000)), new=False):
            self._check(lease)

    @done_aside
    def release(self, lease: Lease) -> None:
        with suppress(LeaseLost):
            self._check(lease)
            self._write_lease(lease.given_back(), new=False)

    @done_aside
    def holder(self) -> Lease | None:
        with self._usable():
            return self._lease(self._largest(_LEASE))

    def _check(self, lease: Lease) -> None:
        number = self._largest(_LEASE)
        current = None
        with suppress(OSError):  # who has followed may be another user
            current = self._lease(number)
        # one of this number that cannot be read is taken for this one
        if number != lease.number or not (current is None or lease.is_same(current)):
            raise lost(lease, current, str(self))

    # ------------------------------------------------------------------ parts and manifests

    @done_aside
    def put(self, lease: Lease, part: str, data: bytes) -> None:
        self._check(lease)
        with self._written(f"{_PART}{part}", data) as temporary, self._not_followed(lease):
            os.replace(temporary, self._file(part))
        self._sync_name(self._file(part))

    @done_aside
    def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        self._check(lease)
        with self._written(f"{number:08}", manifest) as temporary, self._not_followed(lease):
            self._check(lease)
            try:
                name_file(temporary, self._file(number))
            except FileExistsError:
                self._check(lease)
                os.replace(temporary, self._file(number))
        self._sync_name(self._file(number))
        self._note_newest(number)
        self._check(lease)

    def _note_newest(self, number: int) -> None:
        """Have it seen from now on if the manifest of this number, which is on the disk, is lost."""
        before = self._largest(_NEWEST)
        if before < number:
            with suppress(FileNotFoundError):
                os.rename(self._file(before, _NEWEST), self._file(number, _NEWEST))
                return
            self._file(number, _NEWEST).touch()

    def _largest(self, before: str) -> int:
        """Of the last lease that was given, or of the manifest that must be there; 0 for none."""
        return max(self._numbers(before), default=0)

    @contextmanager
    def _written(self, name: str, data: bytes) -> Iterator[str]:
        """`data`, on the disk, under a name that is to be changed."""
        self._path.mkdir(exist_ok=True)
        file, temporary = tempfile.mkstemp(dir=self._path, prefix=f"{name}.", suffix=_UNFINISHED)
        try:
            with open(file, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            yield temporary
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    @contextmanager
    def _not_followed(self, lease: Lease) -> Iterator[None]:
        """A file that is missing in this block may have been deleted by the present holder of the lease."""
        try:
            yield
        except FileNotFoundError:
            self._check(lease)
            raise

    def _sync_name(self, file: Path) -> None:
        """Bring the name of a file to the disk; one that may not be there is taken away again."""
        try:
            sync_folder(self._path)
        except BaseException:
            file.unlink(missing_ok=True)
            raise

    @done_aside
    def numbers(self) -> list[int]:
        newest = self._largest(_NEWEST)  # first: it may be let go meanwhile, and another one be there
        numbers = self._numbers("", _ENDING)
        # an earlier version of this package writes later ones without a word of it
        return [*numbers, newest] if newest > max(numbers, default=0) else numbers

    def _numbers(self, before: str, behind: str = "") -> list[int]:
        names = (name.removeprefix(before).removesuffix(behind) for name in self._names(before, behind))
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def _names(self, before: str, behind: str) -> list[str]:
        with self._usable():
            try:
                names = os.listdir(self._path)
            except FileNotFoundError:
                if missing_folder(str(self._path)) is not None:
                    raise
                return []
        return [name for name in names if name.startswith(before) and name.endswith(behind)]

    @done_aside
    def parts(self) -> list[str]:
        found = self._names(_PART, "")
        return [name.removeprefix(_PART) for name in found if not name.endswith(_UNFINISHED)]

    @done_aside
    def read(self, what: int | str) -> bytes:
        return self._read(what)

    @done_aside
    def manifests(self, numbers: Collection[int]) -> Manifests:
        return manifests_by(self._read, numbers)

    def _read(self, what: int | str) -> bytes:
        file = self._file(what)
        try:
            return contents(file)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not file.is_symlink():
                raise missing(what, self._largest(_NEWEST), str(self)) from None
            why = f"{file} cannot be read: {describe_error(error)}"
            if error.errno in _LOST:
                raise DamagedCheckpoint(why) from error
            raise CheckpointError(
                f"{why}; see to it that it can, or go on from another checkpoint: restore=number"
            ) from error

    @done_aside
    def delete(self, lease: Lease, numbers: Collection[int], parts: Collection[str]) -> None:
        self._check(lease)
        # that of the newest first: after a crash in between nothing is missing
        newest = self._largest(_NEWEST)
        noted = [self._file(newest, _NEWEST)] if newest in numbers else []
        for file in (*noted, *map(self._file, numbers), *map(self._file, parts)):
            file.unlink(missing_ok=True)
        self._clear(lease)

    def _clear(self, lease: Lease) -> None:
        """
        Delete what was left in the middle of a write: who has the lease writes one after the other. What a
        follower is writing is not among what was there before the look at the lease.
        """
        names = self._names("", _UNFINISHED)
        self._check(lease)
        for name in names:
            of_lease = name.removeprefix(_LEASE)[:8]
            is_old_lease = of_lease.isdecimal() and int(of_lease) < lease.number
            if name[:8].isdecimal() or name.startswith(_PART) or is_old_lease:
                (self._path / name).unlink(missing_ok=True)

    def _file(self, what: int | str, before: str = "") -> Path:
        """Of a manifest, or of what has such a name before its number; or of a part."""
        if isinstance(what, str):
            return self._path / f"{_PART}{what}"
        return self._path / f"{before}{what:08}{'' if before else _ENDING}"


def name_file(temporary: str, file: Path) -> None:
    """Give a file its name; raises `FileExistsError` if there is one of that name."""
    try:
        os.link(temporary, file)
    except FileExistsError:
        with suppress(FileNotFoundError):
            if os.path.samefile(temporary, file):
                return  # a network disk was asked once more, for its answer was lost
        raise
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        with open(file, "xb"):
            pass
        os.replace(temporary, file)
