"""
Folders that are named by what is in them, `day=2026-11-22/kind=a`, as Hive, Spark and Arrow read them.

The columns are in the names only, not in the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from urllib.parse import quote, unquote

from asyncstream.connectors.files.storage import is_remote
from asyncstream.connectors.rows import JsonWriter, record_of, without_fields

__all__ = ("is_partition", "longest_in", "parted", "partition_of", "partitions_of")

_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""How None is written."""

_LONGEST: Final = 255
"""Bytes of a name, on nearly all disks."""

_LONGEST_PATH: Final = 3500
"""Bytes of all these names together; a path has 4,096 on most disks, with what comes before and behind."""

_LONGEST_KEY: Final = 1024
"""Bytes of the name of an object, in S3 and its like, with what comes before and behind."""

_BEHIND: Final = 64
"""Bytes of the name of a file in such a folder, and some more."""

_WITH_OWN_NUMBERS: Final = frozenset({"numpy", "pandas"})
"""What has types of its own for numbers, and for nothing."""

_AS_SINKS: Final = JsonWriter()
"""Makes of those what sinks write."""


def is_partition(path: str) -> bool:
    """Whether a folder in another one, by its path from there, holds rows of that; "" is the other one."""
    return not path or all("=" in folder and folder[0] != "." for folder in path.split("/"))


def partition_of(name: str) -> dict[str, str]:
    """The values of a file's partition, as text, by its path in the folder."""
    pairs = (folder.partition("=") for folder in name.split("/")[:-1])
    return {unquote(column): unquote(value) for column, _, value in pairs}


def partitions_of(names: Sequence[str]) -> list[dict[str, Any]]:
    """The values of several files' partitions, as whole numbers where all of a column look like that."""
    partitions = [partition_of(name) for name in names]
    whole = {column for partition in partitions for column in partition}
    for partition in partitions:
        whole -= {column for column, value in partition.items() if not _is_whole(value)}

    def value_of(column: str, value: str) -> Any:
        return None if value == _NO_VALUE else int(value) if column in whole else value

    return [{column: value_of(column, value) for column, value in each.items()} for each in partitions]


def _is_whole(value: str) -> bool:
    return value == _NO_VALUE or (value.removeprefix("-").isdecimal() and str(int(value)) == value)


def longest_in(path: str) -> int:
    """How many bytes the names of folders in the one of this path may have together."""
    return _LONGEST_KEY - _BEHIND - len(path.encode()) if is_remote(path) else _LONGEST_PATH


def parted(value: Any, columns: Sequence[str], longest: int) -> tuple[str, Mapping[str, Any]]:
    """
    Which folder an element goes to, and what of it is written there.

    Args:
        value: a mapping, or something that has fields.
        columns: to partition by; none: no folder.
        longest: bytes of the folder's path, see `longest_in`.

    Raises:
        TypeError, ValueError: if the element has no such values, or no others.
    """
    record = record_of(value)
    if record is None:
        raise without_fields(value)
    rest = dict(record)
    folders = []
    for column in columns:
        if column not in rest:
            raise ValueError(f"there is no {column!r} to partition by")
        folder = f"{_named(column)}={_written(rest.pop(column))}"
        if len(folder) > _LONGEST:
            raise ValueError(f"its {column!r} is too long for the name of a folder, {_LONGEST} bytes at most")
        folders.append(folder)
    if not rest:
        raise ValueError("there is nothing but what it is partitioned by")
    path = "/".join(folders)
    if len(path) > longest:
        names = ", ".join(map(repr, columns))
        raise ValueError(f"{names} are too long together for a path, {longest} bytes at most")
    return path, rest


def _named(column: str) -> str:
    name = quote(column, safe="")
    # or those who read would take the folder for one that is hidden
    return f"%{ord(name[0]):X}{name[1:]}" if name[:1] in ("_", ".") else name


def _written(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    is_date = hasattr(value, "isoformat")
    if type(value).__module__.partition(".")[0] in _WITH_OWN_NUMBERS and not (is_date and value == value):
        value = _AS_SINKS.plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or value == "":
        return _NO_VALUE
    if not isinstance(value, str | int | float | Decimal) and not is_date:
        raise TypeError(f"a {type(value).__name__} cannot be partitioned by; text, numbers and dates can")
    return quote(str(value), safe=" ,+")
