"""
RocksDB, through `rocksdict`, as a place for rows: in a directory that is emptied when it is opened.

The directory belongs to one job of one process. It is marked as a state's, so that nothing else is ever
deleted, and locked while it is in use. What a killed process has left there is of no use. Therefore there is
no write-ahead log either, and nothing is brought to the disk by force.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Final

from asyncstream.errors import StateError, describe_error, module_of
from asyncstream.filesystem.folders import lasting
from asyncstream.filesystem.locks import lock
from asyncstream.state.stored import StateBackend, Stored
from asyncstream.validation import count, file_path

__all__ = ("Database", "DiskState")

MARK: Final = "asyncstream-state.lock"
"""The file that says that the directory is a state's, and is locked."""

ROWS: Final = "rows"
"""The directory of the database."""

WRITE_BUFFER_BYTES: Final = 32 << 20
"""Bytes that RocksDB gathers before it writes a file; there may be two such buffers."""

_processes: Final[set[int]] = set()
"""The one that has opened databases: this process, or one that it was forked from."""


@dataclass(frozen=True)
class DiskState(StateBackend):
    """
    Keeps what steps remember on disk, so that it may be larger than memory:
    `pipeline.start(state=DiskState("state"))`.

    What process functions and windows have touched lately stays in memory, the rest is in RocksDB (extra
    `[disk]`). Policy windows and calls that are under way stay in memory. The directory, on a disk of this
    machine, is a cache: it is emptied at each start, and what is to outlast the job goes into checkpoints.
    Each job needs one of its own. Keys must compare by value, and keys, values, and what windows hold be such
    that pickle keeps them; a full disk or a lost directory fails the job.

    When a window that overlaps others fires, its results are put together in memory, for all of its keys;
    those of tumbling windows and sessions need not be.

    Args:
        directory: where; made if it is not there.
        young_rows: about how many rows of a step are gathered in memory before those that have not been
            touched for longest are brought to disk; and about how many of those that were only read lately
            stay there, up to twice as many.
        cache_bytes: memory for what is read from disk, as it is there.

    Raises:
        PipelineError: if an argument is wrong.
    """

    directory: str | PathLike[str]
    _: KW_ONLY
    young_rows: int = 200_000
    cache_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        directory = Path(lasting(file_path("directory", self.directory, "a directory")))
        object.__setattr__(self, "directory", directory)
        count("young_rows", self.young_rows)
        count("cache_bytes", self.cache_bytes, least=1 << 20)

    def open(self) -> Stored:
        return Database(self)


class Database(Stored):
    """
    Bytes under names, in their order, in a directory that is this object's alone.

    Args:
        settings: what the user chose.

    Raises:
        StateError: if the directory is another's, or cannot be used; or this process was forked from one that
            has had such a database.
        MissingExtra: if RocksDB is not installed.
    """

    def __init__(self, settings: DiskState) -> None:
        rocksdict = module_of("disk", "rocksdict", "state on disk")
        super().__init__(str(settings.directory), recent_rows=settings.young_rows)
        directory = Path(settings.directory)
        if _processes - {os.getpid()}:
            raise StateError(
                f"state cannot be kept in {directory}: this process was forked from one that has done so, of "
                "whose RocksDB it has no threads; start it by spawn, or fork it earlier"
            )
        self._lock = _claimed(directory)
        _processes.add(os.getpid())
        self._options = rocksdict.ReadOptions
        self._batch = rocksdict.WriteBatch
        self._write_options = rocksdict.WriteOptions()
        setattr(self._write_options, "disable_wal", True)  # noqa: B010 - declared as a method
        try:
            self._database: Any = rocksdict.Rdict(str(directory / ROWS), _options(settings.cache_bytes))
        except Exception as error:  # rocksdict has no class of its own for what RocksDB says
            self._lock.close()
            raise StateError(f"state cannot be kept in {self._where}: {describe_error(error)}") from error
        self.get = self._database.get

    def get_many(self, names: list[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._database.get(names)
        return found

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        batch = self._batch(raw_mode=True)
        for name, data in puts:
            batch.put(name, data)
        for name in deletes:
            batch.delete(name)
        self._database.write(batch, self._write_options)

    def delete_range(self, begin: bytes, end: bytes) -> None:
        batch = self._batch(raw_mode=True)
        batch.delete_range(begin, end)
        self._database.write(batch, self._write_options)

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        options = self._options()
        options.set_iterate_upper_bound(end)
        found = self._database.iter(options)
        found.seek(begin)
        while found.valid():
            yield found.key(), found.value()
            found.next()
        found.status()  # raises if this is no end, but an error

    def close(self) -> None:
        """Give the directory up, and empty it."""
        self._end()
        with suppress(Exception):  # of a full disk, or a directory that is gone: nothing of it is needed
            self._database.close()
        if _is_ours(Path(self._where), self._lock):
            shutil.rmtree(Path(self._where) / ROWS, ignore_errors=True)
        self._lock.close()


def _claimed(directory: Path) -> BinaryIO:
    """
    The directory, emptied, and locked for as long as the file is open that this gives; raises `StateError` if
    another has it, or it holds what is no state.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        ours = {MARK: Path.is_file, ROWS: Path.is_dir}
        found = {entry.name: entry for entry in directory.iterdir()}
        others = sorted(name for name, entry in found.items() if name not in ours or not ours[name](entry))
        if others or (ROWS in found and MARK not in found):
            raise StateError(
                f"state cannot be kept in {directory}, which holds something else "
                f"({(others or [ROWS])[0]}): it would be deleted; give the state a directory of its own"
            )
        mark = (directory / MARK).open("ab")
        if not lock(mark):
            mark.close()
            raise StateError(
                f"state cannot be kept in {directory}: another job keeps its own there; give each a "
                f"directory of its own"
            )
        if (directory / ROWS).exists():
            shutil.rmtree(directory / ROWS)
    except OSError as error:
        raise StateError(f"state cannot be kept in {directory}: {describe_error(error)}") from error
    return mark


def _is_ours(directory: Path, mark: BinaryIO) -> bool:
    """Whether it is still the directory that was claimed: another may be in its place, of another job."""
    try:
        return os.path.samestat(os.stat(directory / MARK), os.fstat(mark.fileno()))
    except OSError:
        return False


def _options(cache_bytes: int) -> Any:
    import rocksdict

    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(cache_bytes))
    table.set_bloom_filter(10, False)
    # one for a whole file is larger than a shard of the cache, and would be read again for each row
    table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    # most rows that are read are not in these: to find that out in their skip lists is a third of a read
    options.set_memtable_prefix_bloom_ratio(0.02)
    options.set_memtable_whole_key_filtering(True)
    options.set_max_background_jobs(2)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1 << 20)
    return options
