"""
Bytes under names, in their order, outside memory: what rows on disk need of whatever keeps them.

An error of it (a full disk, a directory that is gone) is told once, and from then on every call fails: code
of the user that catches every exception cannot hide that rows are gone.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from asyncstream.errors import StateError, describe_error
from asyncstream.shown import Shown

__all__ = ("NOTHING", "Recent", "StateBackend", "Stored")

RECENT: Final = 50_000
"""Rows that were read lately and stay in memory, at least, where there is no other bound."""


NOTHING: Final[list[Any]] = []
"""What stands under a name that has no entry."""


class Recent:
    """
    What stands under names, decoded, of rows that were read lately. It also need not be read before it is
    written: a row keeps its place among the others, and shares its name with those of the same hash.

    The names are in two dicts. When the newer one is full, it becomes the older, and what that had is
    forgotten, but for what was asked for meanwhile. So what is often asked for stays.
    """

    __slots__ = ("_limit", "_newer", "_older")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._newer: dict[bytes, Any] = {}
        self._older: dict[bytes, Any] = {}

    def get(self, name: bytes) -> Any:
        """What stands there, which may be `NOTHING`; None: that is not known."""
        held = self._newer.get(name)
        if held is None and (held := self._older.pop(name, None)) is not None:
            self.note(name, held)
        return held

    def note(self, name: bytes, held: Any) -> None:
        """This stands there."""
        newer = self._newer
        newer[name] = held
        if len(newer) >= self._limit:
            self._older, self._newer = newer, {}

    def forget(self, names: Iterable[bytes]) -> None:
        """Nothing is known of these names any more."""
        for name in names:
            self._newer.pop(name, None)
            self._older.pop(name, None)

    def clear(self) -> None:
        """Nothing is known of any."""
        self._newer, self._older = {}, {}


class Stored(ABC):
    """
    Bytes under names.

    Attributes:
        get: what is under a name, or None; asked after `check`.
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
        dumps: Callable[[Any], bytes] = lambda value: pickle.dumps(value, 5),
        loads: Callable[[bytes], Any] = pickle.loads,
        recent_rows: int = RECENT,
    ) -> None:
        self._where = where
        self.recent = Recent(recent_rows)
        self.dumps, self.loads = dumps, loads
        self.tables = 0
        self.broken: StateError | None = None
        self.on_failure: Callable[[StateError], None] = lambda error: None

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

    def fail(self, error: BaseException, step: str = "") -> NoReturn:
        """
        Give up.

        Args:
            step: what of which could not be kept.

        Raises:
            StateError: says why, this time and from now on.
        """
        if self.broken is None:
            if isinstance(error, StateError):
                self.broken = error
                if step:
                    self.broken = StateError(f"step {step!r}: {error}")
                    self.broken.__cause__ = error.__cause__
            else:
                text = describe_error(error)
                self.broken = StateError(f"the state in {self._where} cannot be used any more: {text}")
                self.broken.__cause__ = error
            self.on_failure(self.broken)
        raise self.broken

    @contextmanager
    def failing(self, step: str = "") -> Iterator[None]:
        """What goes wrong in this block is its end, as `fail` says."""
        try:
            yield
        except Exception as error:
            self.fail(error, step)

    def check(self) -> None:
        """Raise if it cannot be used any more."""
        if self.broken is not None:
            raise self.broken

    def _end(self) -> None:
        """Have every call fail from now on."""
        self.recent.clear()
        if self.broken is None:
            self.broken = StateError(f"the state in {self._where} was closed")


class StateBackend(Shown, ABC):
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
