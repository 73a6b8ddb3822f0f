"""
What all guards share: they wrap an async function and are one.

A guard holds the call that it guards and nothing of the elements that go through it: what belongs to one
element lives in the local variables of its `invoke`. What several calls share (a rate, a breaker, a
limit) is an object of its own, so that several guards can be given the same one.

Each guard is written once, as a class whose first argument is the function; `usable_as_decorator` makes
the lower-case name that people write, `retry(fetch, attempts=3)` or `@retry(attempts=3)`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from numbers import Real
from operator import add
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from asyncstream.aside import Tasks, heed, in_its_loop, raisable, running_loop
from asyncstream.clock import monotonic_seconds
from asyncstream.errors import safe_repr
from asyncstream.operators.functions import AsyncFunction, call_of, counters_of, figures_of, has_timeout_hook
from asyncstream.sharing import hold, release
from asyncstream.shown import shown_value
from asyncstream.validation import check_options, refuse

__all__ = (
    "Background",
    "Call",
    "Decorator",
    "EARLY",
    "Guard",
    "GuardMaker",
    "chain",
    "delivery",
    "end",
    "fail",
    "guards_in",
    "hashable",
    "loop_time",
    "refuse_beside",
    "time_of",
    "usable_as_decorator",
    "written",
)

In = TypeVar("In")
Out = TypeVar("Out")
P = ParamSpec("P")

Call: TypeAlias = Callable[[In], Awaitable[Out]] | AsyncFunction[In, Out]
"""What can be guarded: an `async def` of one argument, or an `AsyncFunction`."""

EARLY = 1e-6
"""Seconds by which an event loop's timer may be early and still be taken for punctual."""


class Guard(AsyncFunction[In, Out]):
    """
    An async function around another; opening and closing it opens and closes the one inside, which other
    steps and guards may hold too.

    A guard that does not need to wait does not suspend.

    Args:
        fn: the async function that it wraps.

    Attributes:
        inner: the function inside.
        counted: the names in `counters` of those that only ever grow; the others are gauges.
        together: of gauges by name, what two guards in a nest come to that both have it; others are added up.
        shares: what other guards may use too, held while this is open; None: nothing.
        keeps_place: a call has a place in what is shared while it goes on inwards; see `nests`.
        waits_for_place: and it waits for one; else it is refused.
        takers: for `nests`.
    """

    counted: tuple[str, ...] = ()
    together: ClassVar[Mapping[str, Callable[[int, int], int]]] = {}
    shares: object | None = None
    keeps_place: ClassVar[bool] = False
    waits_for_place: bool = True
    takers: object | None = None

    def __init__(self, fn: Call[In, Out]) -> None:
        self.inner = fn
        self._counts = dict.fromkeys(self.counted, 0)  # for guards that count themselves
        self._open_in: asyncio.AbstractEventLoop | None = None  # where it holds what is inside, and shares
        self._holds = AsyncExitStack()
        # an open guard knows its event loop: asking for the running one costs more than a whole guard may
        self._time: Callable[[], float] = loop_time
        self._own_time: Callable[[], float] | None = None  # by which it goes instead, open or not
        advice = "wrap a plain function in an async def, or in in_threads(fn, threads=...)"
        # bound once: a nest of guards is a chain of plain calls of `invoke`
        self._call: Callable[[In], Awaitable[Out]] = call_of("fn", fn, "element", advice=advice)
        if isinstance(fn, AsyncFunction) and has_timeout_hook(fn) and not has_timeout_hook(self):
            self.__dict__["timeout"] = fn.timeout

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # the same function, not one that calls the other: that would be a coroutine more for each call
        cls.__call__ = cls.invoke  # type: ignore[method-assign]

    def __repr__(self) -> str:
        inner = getattr(self.inner, "__qualname__", None) or safe_repr(self.inner)
        return f"{written(type(self))}({', '.join((inner, *list(self._arguments())[1:]))})"

    async def __call__(self, value: In, /) -> Out:
        """The call itself: a guard is used like the function inside."""
        return await self.invoke(value)

    @property
    def uses_key(self) -> bool:
        return isinstance(self.inner, AsyncFunction) and self.inner.uses_key

    async def open(self) -> None:
        loop = get_running_loop()
        self._time = self._own_time or time_of(loop)
        if self._open_in is loop:
            return
        self._open_in, self._holds = loop, AsyncExitStack()
        for held in (self.inner if isinstance(self.inner, AsyncFunction) else None, self.shares):
            if held is not None:
                self._holds.push_async_callback(release, held)  # first: it is to be released if this raises
                await hold(held)

    async def close(self) -> None:
        try:
            await self.stop()
        finally:
            self._time, self._open_in = self._own_time or loop_time, None
            await self._holds.aclose()

    async def stop(self) -> None:
        """End what this guard itself has running in the background; called once, by `close`."""

    def counters(self) -> dict[str, int]:
        """The counters and gauges of this guard alone."""
        return self._counts.copy()

    def metrics(self) -> dict[str, int]:
        """Counters and gauges by name, as they stand now, of this guard and of those inside it."""
        found: dict[str, int] = {}
        together: dict[str, Callable[[int, int], int]] = {}
        in_all: Callable[[int, int], int] = add
        for function in chain(self):
            own = function.counters() if isinstance(function, Guard) else figures_of(function)
            for name, number in own.items():
                found[name] = together.get(name, in_all)(found[name], number) if name in found else number
            if isinstance(function, Guard):
                together |= function.together
        return found

    def counter_names(self) -> tuple[str, ...]:
        """Those of `metrics` that are counters."""
        declared = (
            function.counted if isinstance(function, Guard) else counters_of(function)
            for function in chain(self)
            if isinstance(function, AsyncFunction)
        )
        return tuple(dict.fromkeys(name for names in declared for name in names))


def loop_time() -> float:
    """The time of the running event loop, in seconds; without one, as for a call that is collected, any."""
    loop = running_loop()
    return monotonic_seconds() if loop is None else loop.time()


def time_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """What tells the time of an event loop; for those who ask for every element."""
    if getattr(loop.time, "__func__", None) is asyncio.BaseEventLoop.time:
        return monotonic_seconds  # which is all that it asks, in a third of the time
    return loop.time


def chain(function: object) -> Iterator[object]:
    """`function` and what is inside it, from the outside in."""
    while isinstance(function, Guard):
        yield function
        function = function.inner
    yield function


def guards_in(function: object) -> Iterator[Guard[Any, Any]]:
    """The guards in `function`, from the outside in, with those of an `HttpLookup` around its requests."""
    for part in chain(function):
        if isinstance(part, Guard):
            yield part
        elif isinstance(inside := getattr(part, "guards", None), Guard):
            yield from guards_in(inside)


class Background(Tasks):
    """Tasks that deal with their own errors, and are ended by their owner."""

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        # in the middle of one whose loop was closed, which ends no more
        self.difference_update([task for task in self if task.get_loop().is_closed()])
        while self:
            await end(*self)


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel `tasks` and wait until they have ended, whatever they end with."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def refuse_beside(name: str, guard: type, **options: object) -> None:
    """
    Refuse options that would say nothing, for what they are about is given whole, as `name`.

    Args:
        guard: takes them, and says what they are if they are not given.
    """
    parameters = inspect.signature(guard).parameters
    for option, value in options.items():
        if value != parameters[option].default:
            raise refuse(option, f"none beside {name}=, which has its own", value)


def hashable(key: In) -> In:
    """`key`, which calls are to be told apart by."""
    try:
        hash(key)
    except TypeError as error:
        raise refuse("key", "something hashable", key, "give key=, a function of the element") from error
    return key


def fail(place: asyncio.Future[Any], error: BaseException) -> None:
    """Raise `error` in the task that waits for `place`, if one still does."""
    if place.done():
        return
    if isinstance(error, asyncio.CancelledError):
        place.cancel()
    else:
        place.set_exception(raisable(error))


async def delivery(place: asyncio.Future[Out]) -> Out:
    """What `place` is given; an error that comes too late for a cancelled caller is not called unheeded."""
    try:
        return await place
    except BaseException:
        if in_its_loop(place) and not place.cancel():
            heed(place)
        raise


def written(guard: Any) -> str:
    """How people write the guard of this class: `single_flight` for a `SingleFlight`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", guard.__name__).lower()


class _Unapplied(functools.partial[Any]):
    """A guard with its options, which is still to be given its function."""

    def __repr__(self) -> str:
        options = (f"{name}={shown_value(name, value)}" for name, value in self.keywords.items())
        return f"{written(self.func)}({', '.join(options)})"


class Decorator(Protocol):
    """Puts a guard around a function."""

    def __call__(self, fn: Call[In, Out], /) -> Guard[In, Out]: ...


class GuardMaker(Protocol[P]):
    """A guard's class that may be called with the function or, to get a decorator, without."""

    @overload
    def __call__(self, fn: Call[In, Out], /, *args: P.args, **kwargs: P.kwargs) -> Guard[In, Out]: ...

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Decorator: ...


def usable_as_decorator(make: Callable[Concatenate[Call[Any, Any], P], Guard[Any, Any]]) -> GuardMaker[P]:
    """`make(fn, **options)` that may also be called `make(**options)(fn)`."""

    constructor: Callable[..., Any] = make

    known = list(inspect.signature(make).parameters)[1:]

    @functools.wraps(make, updated=())
    def guard(fn: Any = None, /, *unnamed: Any, **options: Any) -> Any:
        check_options(name, options, known)
        if isinstance(fn, Real | str | timedelta):  # no function, and what options are
            unnamed = (fn, *unnamed)
        if unnamed:
            raise refuse(name, f"its options by name ({', '.join(known)})", unnamed)
        return _Unapplied(constructor, **options) if fn is None else constructor(fn, **options)

    guard.__name__ = guard.__qualname__ = name = written(make)
    return guard
