"""
Bytes under names, in their order, outside memory: what rows on disk need of whatever keeps them.

An error of it (a full disk, a directory that is gone) is told once, and from then on every call fails: code
of the user that catches every exception cannot hide that rows are gone.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn

from asyncstream.errors import StateError, describe_error
from asyncstream.state.recent import Recent

__all__ = ("StateBackend", "Stored")

RECENT: Final = 50_000
"""Rows that were read lately and stay in memory, at least, where there is no other bound."""


def _dumps(value: Any) -> bytes:
    return pickle.dumps(value, 5)


class Stored(ABC):
    """
    Bytes under names.

    Attributes:
        get: what is under a name, or None.
        broken: why it cannot be used any more, or None.
        on_failure: told of that once.
        dumps: gives the bytes of which `loads` makes an equal value.
        loads: gives what `dumps` was given.
        tables: how many have been numbered.
        recent: rows of it that were read lately.

    Args:
        where: the file or directory, as messages say it.
        recent_rows: about how many of those that were read lately stay in memory; up to twice as many do.
    """

    get: Callable[[bytes], bytes | None]

    def __init__(
        self,
        where: str,
        dumps: Callable[[Any], bytes] = _dumps,
        loads: Callable[[bytes], Any] = pickle.loads,
        recent_rows: int = RECENT,
    ) -> None:
        self._where = where
        self.recent = Recent(recent_rows)
        self.dumps, self.loads = dumps, loads
        self.tables = 0
        self.broken: StateError | None = None
        self.on_failure: Callable[[StateError], None] = _nothing_else

    def next_number(self) -> int:
        """Of a table that has none yet."""
        self.tables += 1
        return self.tables

    @abstractmethod
    def get_many(self, names: list[bytes]) -> list[bytes | None]:
        """What is under these names, in their order."""

    @abstractmethod
    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Have these, and these no more."""

    @abstractmethod
    def delete(self, name: bytes) -> None:
        """Have this no more."""

    @abstractmethod
    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Have nothing from `begin` up to, and without, `end`."""

    @abstractmethod
    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """
        Names, and what is under them, from `begin` up to, and without, `end`, in their order; of what changes
        meanwhile, as it is now or then.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up what it holds of the machine; every call fails from then on."""

    def fail(self, error: BaseException | str) -> NoReturn:
        """
        Give up.

        Raises:
            StateError: says why, this time and from now on.
        """
        if self.broken is None:
            if isinstance(error, StateError):
                self.broken = error
            else:
                text = error if isinstance(error, str) else describe_error(error)
                self.broken = StateError(f"the state in {self._where} cannot be used any more: {text}")
                self.broken.__cause__ = error if isinstance(error, BaseException) else None
            self.get = self._refuse
            self.on_failure(self.broken)
        raise self.broken

    def check(self) -> None:
        """Raise if it cannot be used any more."""
        if self.broken is not None:
            raise self.broken

    def _end(self) -> None:
        """Have every call fail from now on."""
        self.recent.clear()
        self.get = self._refuse
        if self.broken is None:
            self.broken = StateError(f"the state in {self._where} was closed")

    def _refuse(self, name: bytes) -> bytes | None:
        self.check()
        return None


class StateBackend(ABC):
    """
    A place for state that is larger than memory, as `pipeline.start(state=...)` takes it: its settings.

    Attributes:
        young_rows: about how many rows of a step are gathered in memory before they are brought there.
    """

    young_rows: int

    @abstractmethod
    def open(self) -> Stored:
        """
        The place itself, empty, for one run of a job, which closes it.

        Raises:
            StateError: if it cannot be used.
            MissingExtra: if what it needs is not installed.
        """


def _nothing_else(error: StateError) -> None:
    """For those who see what is raised."""
