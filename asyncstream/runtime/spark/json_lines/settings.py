"""
What a source of JSON lines is told, from the call that makes the DataFrame to the tasks that read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from glob import has_magic
from typing import Final, Literal

import orjson

from asyncstream.validation import choice, count, file_path, refuse, text

__all__ = ("FORMAT", "OPTION", "Limits", "ReadSettings", "folder_path")

FORMAT: Final = "asyncstream.json_lines"
"""What the source and the sink are called in Spark's plans and progress."""

OPTION: Final = "settings"
"""The one option of the source, which carries all the settings."""


@dataclass(frozen=True)
class Limits:
    """How much one micro-batch may read; None: no limit."""

    rows: int | None = None
    bytes: int | None = None
    files: int | None = None


@dataclass(frozen=True)
class ReadSettings:
    """See `read_json_lines` and `stream_json_lines`."""

    path: str
    time: str | None
    on_malformed: Literal["fail", "reject"]
    max_line_bytes: int
    partitions: int
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_files_per_trigger: int | None = None

    def __post_init__(self) -> None:
        folder_path(self.path)
        if self.time is not None:
            text("time", self.time)
        choice("on_malformed", self.on_malformed, ("fail", "reject"))
        count("max_line_bytes", self.max_line_bytes)
        count("partitions", self.partitions)
        for name in ("max_rows_per_trigger", "max_bytes_per_trigger", "max_files_per_trigger"):
            if (limit := getattr(self, name)) is not None:
                count(name, limit)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ReadSettings:
        if OPTION not in options:
            raise refuse("options", "those of read_json_lines or stream_json_lines", dict(options))
        return cls(**orjson.loads(options[OPTION]))

    def options(self) -> dict[str, str]:
        return {OPTION: orjson.dumps(asdict(self)).decode()}

    @property
    def limits(self) -> Limits:
        return Limits(self.max_rows_per_trigger, self.max_bytes_per_trigger, self.max_files_per_trigger)


def folder_path(path: object, *, pattern: bool = True) -> str:
    """`path` as text: of something on a file system, local or mounted."""
    found = file_path("path", path, "a folder")
    scheme, colon, _ = found.partition(":/")
    if colon and len(scheme) > 1 and scheme.isalnum():  # of one letter it is a drive
        raise refuse("path", "a path that driver and workers see alike, local or mounted", found)
    if not pattern and has_magic(found):
        raise refuse("path", "the path of a folder, not a pattern", found)
    return found
