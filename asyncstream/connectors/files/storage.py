"""
Where files are: on a disk, or in an object store (`s3://`, `gs://`, `az://`, `memory://`, ...) by fsspec.

A path with `://` in it names an object store; the extra [fsspec] has what opens it. What fsspec does may wait
for a network, so those who use a store that `is_remote` do so in a thread; a disk answers in the event loop.

An object store has no lock and no rename that is one step: `rename` copies and deletes, and what a crash
leaves between the two is there under both names.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar, cast

from asyncstream.aside import DiskThread
from asyncstream.connectors.lines import open_file
from asyncstream.errors import PipelineError, module_of
from asyncstream.filesystem.folders import by_their_own_names, lasting, sync_folder
from asyncstream.validation import refuse

__all__ = ("Storage", "Work", "is_remote", "size_of", "storage_of")

T = TypeVar("T")


def is_remote(path: str) -> bool:
    """Whether a path names something in an object store."""
    return "://" in path


def size_of(file: BinaryIO) -> int:
    """How many bytes an open file has; its own place stays where it is."""
    try:
        return os.fstat(file.fileno()).st_size
    except (OSError, AttributeError):  # of an object store
        place = file.tell()
        try:
            return file.seek(0, os.SEEK_END)
        finally:
            file.seek(place)


class Storage(ABC):
    """
    What is done with files.

    Attributes:
        is_remote: it is an object store.
        errors: what is raised by what fails.
    """

    is_remote = False
    errors: tuple[type[Exception], ...] = (OSError,)

    @abstractmethod
    def exists(self, path: str) -> bool: ...

    @abstractmethod
    def is_folder(self, path: str) -> bool: ...

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The files in a folder and in those below it, by their paths from there; none if it is not there."""

    def apart(self, folder: str, names: list[str]) -> list[str]:
        """Those of some files in a folder that are not links to others of them."""
        return names

    @abstractmethod
    def read(self, path: str) -> BinaryIO:
        """The file, open at its beginning."""

    @abstractmethod
    def create(self, path: str) -> BinaryIO:
        """A new file, in a folder that is made if need be."""

    @abstractmethod
    def sync(self, path: str) -> None:
        """Have what was written to a file, which is closed, outlast a crash of the machine."""

    @abstractmethod
    def rename(self, path: str, target: str) -> None: ...

    @abstractmethod
    def remove(self, path: str) -> None: ...

    @abstractmethod
    def make_folder(self, path: str) -> None: ...

    @abstractmethod
    def settle(self, folder: str) -> None:
        """Have the names in a folder outlast a crash of the machine."""

    def resolved(self, path: str) -> str:
        """The path that leads there for good."""
        return path

    def behind_links(self, path: str) -> str:
        """The path of the file or folder itself, the same for all that lead there."""
        return path.rstrip("/")

    def join(self, folder: str, name: str) -> str:
        return f"{folder.rstrip('/')}/{name}"

    def beside(self, path: str, ending: str) -> str:
        """A hidden name beside that of `path`, with another ending behind it."""
        folder, _, own = path.rstrip("/").rpartition("/")
        return f"{folder}/.{own}{ending}"


def storage_of(path: str) -> Storage:
    """
    Where the path leads; raises `MissingExtra` if that is an object store, and fsspec is not installed,
    `PipelineError` if that does not know it, or lacks the library that it needs for it.
    """
    return _Remote(path) if is_remote(path) else _Disk()


class Work:
    """
    Does work on a storage, one piece after the other: in the event loop on a disk, else in a thread that is
    begun with the first.
    """

    def __init__(self, storage: Storage) -> None:
        self._is_remote = storage.is_remote
        self._thread = DiskThread()

    async def do(self, work: Callable[[], T]) -> T:
        if not self._is_remote:
            return work()
        return await self._thread.do(work)

    def end(self) -> None:
        """Let the thread end when its work is done; returns at once."""
        self._thread.end()


class _Disk(Storage):
    """Relative paths go from where the program was when this was made, wherever it goes later."""

    def __init__(self) -> None:
        self._here = lasting("")

    def resolved(self, path: str) -> str:
        return os.path.join(self._here, path)

    def behind_links(self, path: str) -> str:
        return os.path.realpath(self.resolved(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(self.resolved(path))

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(self.resolved(path))

    def names(self, folder: str) -> list[str]:
        return list(_below(self.resolved(folder), "", frozenset()))

    def apart(self, folder: str, names: list[str]) -> list[str]:
        found = {name: os.stat(self.resolved(self.join(folder, name))) for name in names}
        return list(by_their_own_names(found, self.resolved(folder)))

    def read(self, path: str) -> BinaryIO:
        mode = os.stat(self.resolved(path)).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # to open a pipe waits for who writes to it
            raise OSError("it is a pipe or a device, where nothing can be read a second time")
        return open_file(self.resolved(path), "rb")

    def create(self, path: str) -> BinaryIO:
        os.makedirs(os.path.dirname(self.resolved(path)), exist_ok=True)
        return open_file(self.resolved(path), "xb")

    def sync(self, path: str) -> None:
        with open(self.resolved(path), "rb") as file:
            os.fsync(file.fileno())

    def rename(self, path: str, target: str) -> None:
        os.replace(self.resolved(path), self.resolved(target))

    def remove(self, path: str) -> None:
        os.unlink(self.resolved(path))

    def make_folder(self, path: str) -> None:
        os.makedirs(self.resolved(path), exist_ok=True)

    def settle(self, folder: str) -> None:
        sync_folder(self.resolved(folder))

    def join(self, folder: str, name: str) -> str:
        return os.path.join(folder, name)

    def beside(self, path: str, ending: str) -> str:
        folder, own = os.path.split(os.path.abspath(self.resolved(path)))
        return os.path.join(folder, f".{own}{ending}")


def _below(folder: str, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[str]:
    try:
        own = os.stat(folder)
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    if (own.st_dev, own.st_ino) in above:  # by a link to where it is in
        return
    above |= {(own.st_dev, own.st_ino)}
    for entry in entries:
        if entry.is_dir():
            yield from _below(entry.path, f"{prefix}{entry.name}/", above)
        else:
            yield f"{prefix}{entry.name}"


class _Remote(Storage):
    is_remote = True
    errors = (Exception,)  # each library has its own

    def __init__(self, path: str) -> None:
        fsspec = module_of("fsspec", "fsspec", f"{path.partition('://')[0]}://")
        try:
            self._fs: Any = fsspec.core.url_to_fs(path)[0]
        except ValueError as error:
            expected = "a path on a disk, or in a store that fsspec knows, such as s3://bucket/file"
            raise refuse("path", expected, path) from error
        except ImportError as error:
            store = path.partition("://")[0]
            raise PipelineError(f"path: {store}:// needs a library of its own: {error}") from error

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(path))

    def is_folder(self, path: str) -> bool:
        return bool(self._fs.isdir(path))

    def names(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()
        root = self._fs._strip_protocol(folder).rstrip("/") + "/"
        try:
            return [str(name).removeprefix(root) for name in self._fs.find(folder)]
        except FileNotFoundError:
            return []

    def read(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._fs.open(path, "rb"))

    def create(self, path: str) -> BinaryIO:
        self._fs.makedirs(self._fs._parent(path), exist_ok=True)
        return cast(BinaryIO, self._fs.open(path, "wb"))

    def sync(self, path: str) -> None:
        """An object that is closed stays."""

    def rename(self, path: str, target: str) -> None:
        self._fs.mv(path, target)

    def remove(self, path: str) -> None:
        self._fs.rm_file(path)

    def make_folder(self, path: str) -> None:
        self._fs.makedirs(path, exist_ok=True)

    def settle(self, folder: str) -> None:
        """An object that is there stays there."""
