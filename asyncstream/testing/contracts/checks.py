"""
What a contract is made of: checks, each with a folder of its own, and lives that end in the middle.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

from asyncstream.errors import PipelineError, describe_error, safe_repr
from asyncstream.validation import function, refuse

__all__ = (
    "Check",
    "Contract",
    "ContractBroken",
    "Places",
    "differing",
    "expect",
    "expect_equal",
    "given",
    "verify",
)

T = TypeVar("T")

SECONDS = 60.0
"""How long a check may take from each thing that it makes to the next: longer than any, on a busy machine."""


SHOWN = 1000
"""Characters of what was expected, and of what was found, in a message."""


class ContractBroken(AssertionError):
    """Raised when what is checked does not keep what it promises; says what, and what came instead."""


@dataclass(frozen=True)
class Check:
    """
    One thing that a source, a sink or a store promises: `await check(folder)` sees whether it is kept.

    Attributes:
        name: the promise in a few words, for test reports.
        promise: the promise in a sentence.
        run: does it, in an empty folder.
    """

    name: str
    promise: str
    run: Callable[[Path], Coroutine[Any, Any, None]]

    def __str__(self) -> str:
        return self.name

    async def __call__(self, folder: Path) -> None:
        """
        See whether it is kept.

        Args:
            folder: empty, and for this check alone.

        Raises:
            ContractBroken: if it is not.
        """
        try:
            await self.run(folder)
        except TimeoutError as error:
            raise ContractBroken(f"{self.promise} It takes for ever.") from error
        except Exception as error:
            raise ContractBroken(f"{self.promise} {describe_error(error)}") from error


class Contract(Generic[T]):
    """
    Base of the contracts: each public coroutine method is a check, told of in its docstring; `make` gives
    what is checked, of this `kind`, in a folder.
    """

    def __init__(self, make: Callable[[Path], T], kind: type) -> None:
        self._maker: Callable[[Path], T] = function("make", make, "folder")
        self._kind = kind
        self._made: list[T] = []
        self._limit: tuple[asyncio.Task[Any] | None, asyncio.Timeout] | None = None  # of the check that runs

    def _make(self, folder: Path) -> T:
        made = self._maker(folder)
        if not isinstance(made, self._kind):
            raise refuse("make", f"a function that gives a {self._kind.__name__}", made)
        self._made.append(made)  # and alive until the check is over, as what a crash leaves is not tidied up
        task, limit = self._limit or (None, None)
        # it gets on; lives in other processes, which have this too, do not say so
        if limit is not None and task is asyncio.current_task() and not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time() + SECONDS)
        return made

    def _place(self, folder: Path, name: object) -> Path:
        """A new folder in it, for a part of a check."""
        place = folder / f"{name}"
        place.mkdir()
        return place

    def checks(self) -> list[Check]:
        """All checks, in the order in which they are written down; those that `leaves_out` are not there."""
        found = []
        declared = {name: what for kind in reversed(type(self).__mro__) for name, what in vars(kind).items()}
        for name, method in declared.items():  # those of the base first
            is_check = inspect.iscoroutinefunction(method) and not name.startswith("_") and name != "abandon"
            if is_check and not self.leaves_out(name):
                promise = " ".join((inspect.getdoc(method) or "").split())
                found.append(Check(name, promise, partial(self._check, getattr(self, name))))
        return found

    async def _check(self, method: Callable[[Path], Coroutine[Any, Any, None]], folder: Path) -> None:
        try:
            async with asyncio.timeout(SECONDS) as limit:
                self._limit = asyncio.current_task(), limit
                await method(folder)
        except BaseException:
            for made in self._made:
                with suppress(Exception):  # it does not do what it should, as is known
                    await self.abandon(made)
            raise
        finally:
            self._limit = None
            self._made.clear()

    async def abandon(self, made: T) -> None:
        """Close what a check has made that did not come to its end."""

    def leaves_out(self, name: str) -> bool:
        """Whether a check is about something that is not promised."""
        return False


async def verify(checks: Iterable[Check]) -> None:
    """
    Run all checks, each in a temporary folder, for those who do not use pytest.

    Args:
        checks: as `source_contract`, `sink_contract` and `store_contract` give them.

    Raises:
        ContractBroken: with all that is not kept.
    """
    broken = []
    for check in checks:
        with TemporaryDirectory() as folder:
            try:
                await check(Path(folder))
            except ContractBroken as error:
                broken.append(f"{check}: {error}")
    if broken:
        raise ContractBroken("\n".join(broken))


class Places:
    """Where elements are among others: the first that equals each, of which not all need be looked at."""

    def __init__(self, elements: Iterable[Any]) -> None:
        self._all = list(enumerate(elements))
        self._alike: dict[int, list[tuple[int, Any]]] = {}
        for place, element in self._all:
            self._alike.setdefault(_hash(element), []).append((place, element))

    def of(self, element: Any) -> int | None:
        """Its place, counted from 0; None: there is none that equals it."""
        # some equal what has another hash: a `bytearray` bytes, and what a test expects may equal anything
        for among in (self._alike.get(_hash(element), ()), self._all):
            for place, other in among:
                if other is element or other == element:
                    return place
        return None


def _hash(value: Any) -> int:
    """A number that is the same for values that are equal, also of lists and dicts."""
    if isinstance(value, Mapping):
        return hash(frozenset((key, _hash(part)) for key, part in value.items()))
    if isinstance(value, list):
        return hash(tuple(map(_hash, value)))
    try:
        return hash(value)
    except TypeError:
        return 0


def differing(name: str, elements: Sequence[Any], least: int) -> None:
    """Raise `PipelineError` unless there are so many elements, no two of them equal: less would be seen."""
    if not isinstance(elements, Sequence) or isinstance(elements, str | bytes):
        raise refuse(name, "a list of elements", elements)
    if len(elements) < least:
        raise PipelineError(f"{name}: expected at least {least}, got {len(elements)}")
    places = Places(elements)
    for place, element in enumerate(elements):
        if places.of(element) != place:
            raise PipelineError(f"{name}: expected no two that are equal, got {safe_repr(element)} twice")


def expect(kept: bool, what: str) -> None:
    """Raise `ContractBroken` with `what` unless it is kept."""
    if not kept:
        raise ContractBroken(what)


def expect_equal(what: str, found: Any, wanted: Any) -> None:
    """Raise `ContractBroken` unless they are equal; of what is long, it says where they begin to differ."""
    if found == wanted:
        return
    expected, came = safe_repr(wanted, SHOWN), safe_repr(found, SHOWN)
    where = ""
    if expected == came and isinstance(wanted, Sequence) and isinstance(found, Sequence):
        alike = (one == other for one, other in zip(wanted, found, strict=False))
        first = next((place for place, same in enumerate(alike) if not same), min(len(wanted), len(found)))
        ours, theirs = (safe_repr(parts[first : first + 3]) for parts in (wanted, found))
        where = (
            f"; of {len(wanted)}, found {len(found)}, from place {first} on: expected {ours}, found {theirs}"
        )
    raise ContractBroken(f"{what}: expected {expected}, found {came}{where}")


async def given(value: Awaitable[T] | T) -> T:
    """What a function of the user's has given, which may be `async def`."""
    return await value if inspect.isawaitable(value) else value
