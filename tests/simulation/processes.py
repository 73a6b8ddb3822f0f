"""
Several simulated processes on one event loop of virtual time, and the store that they share.

A process is a context: what runs in it, and all that it starts, belongs to the process. Each has a clock of
its own. It may be *stopped* for a while (nothing of it runs, time goes on, and afterwards everything that was
due runs late) or *killed*, which is to be stopped until the story is over. It does not notice either.

The store compares and sets, as `Compared` asks of it, by a clock of its own. What is asked of it takes a
while to come there and back; it is away now and then; and a process may hear that it is away although it has
done what was asked. A message of a process that is stopped or killed meanwhile arrives all the same.

One seed is one story.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

import orjson

from asyncstream.errors import describe_error
from asyncstream.guards import SharedLimit
from asyncstream.guards.shared.records import Compared
from asyncstream.testing.loop import VirtualTimeLoop

__all__ = ("END", "KIND_FROM", "Process", "StoryFailed", "World", "tell")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

KIND_FROM: Final = 4.0
"""From then on nothing goes wrong any more."""

END: Final = 8.5
"""When the story is over. Seconds, as all times here."""

_AFTERWARDS: Final = 10_000.0
"""When what is left of killed processes is cleared away."""

_NEXT: Final = 1e-9
"""Between two things that a process does late: the grain of virtual time."""

_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class StoryFailed(AssertionError):
    """Raised when a story goes as it must not."""


class _Loop(VirtualTimeLoop):
    """Runs what belongs to a process when the process runs, and tells it its own time."""

    def true_time(self) -> float:
        return super().time()

    def time(self) -> float:
        process = _PROCESS.get()
        return super().time() if process is None else round(super().time() + process.ahead, 9)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        process = _PROCESS.get()
        if process is not None:
            when -= process.ahead
        return super().call_at(self._turn(when, context), callback, *args, context=context)

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        now = super().time()
        turn = self._turn(now, context)
        if turn > now:
            return super().call_at(turn, callback, *args, context=context)
        return super().call_soon(callback, *args, context=context)

    def _turn(self, when: float, context: Context | None) -> float:
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        return when if process is None else process.turn(max(when, super().time()))


@dataclass
class Process:
    """
    One of those that share something.

    Attributes:
        name: of it, in stories.
        ahead: by how much its clock is ahead of the true time.
        stops: (from, until) it is stopped; in order, and apart from each other.
        dies: when it is killed; None: it is not.
        heard: when the store did what it had asked for, in order; each time, when it looked for that.
    """

    world: World
    name: str
    ahead: float
    stops: list[tuple[float, float]]
    dies: float | None = None
    heard: list[float] = field(default_factory=list)
    _late: int = 0

    def turn(self, when: float) -> float:
        """When something is done that is due at a time, by the true clock."""
        if self.dies is not None and when >= self.dies:
            return max(_AFTERWARDS, when)
        for begin, end in self.stops:
            if begin <= when < end:
                self._late += 1
                return self.turn(end + self._late * _NEXT)
        return when

    @property
    def is_dead(self) -> bool:
        """Whether it has been killed."""
        return self.dies is not None and self.world.now() >= self.dies

    def was_heard(self, since: float, within: float) -> bool:
        """Whether the store has heard of it from a time until now every so often."""
        first = max(bisect_right(self.heard, since) - 1, 0)
        times = [*self.heard[first:], self.world.now()]
        return all(later - earlier < within for earlier, later in pairwise(times))

    def start(self, main: Callable[[Process], Awaitable[None]]) -> asyncio.Task[None]:
        """Begin with what it does."""

        async def run() -> None:
            await main(self)

        context = copy_context()
        context.run(_PROCESS.set, self)
        task = asyncio.get_running_loop().create_task(run(), name=self.name, context=context)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.complain(f"{self.name} failed: {describe_error(error)}")

    @property
    def scope(self) -> SharedLimit:
        """The limit that all processes of the world share."""
        return _Scope(self)


@dataclass
class World:
    """
    What is outside of all processes.

    Attributes:
        seed: which story it is.
        latencies: of these, how long a message takes to the store, or back.
        random: where chance comes from.
        is_kind: no process is stopped, and the store is always there.
        values: what the store keeps.
        wrong: what went as it must not.
    """

    seed: str
    latencies: tuple[float, ...] = (0.0005, 0.004)
    random: random.Random = field(init=False)
    is_kind: bool = field(init=False)
    values: dict[str, bytes] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    is_over: bool = False

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.is_kind = self.random.random() < 0.4
        self._store_ahead = self.random.choice((0.0, 3.0, 1e6))
        self._latency = self.random.choice(self.latencies)
        self._fails = 0.0 if self.is_kind else self.random.choice((0.0, 0.05, 0.2))
        self._outages = [] if self.is_kind else self._periods(self.random.choice((0, 1, 2)), 1.5)

    def never_away(self) -> None:
        """The store is always there; processes may be stopped all the same."""
        self._fails, self._outages = 0.0, []

    def process(self, number: int, *, dies: bool) -> Process:
        """One of the processes; whether it may be killed, while the world is unkind."""
        chance = self.random
        stops = [] if self.is_kind else self._periods(chance.choice((0, 1, 1, 3)), 2.0)
        killed = chance.uniform(0.2, KIND_FROM) if dies and chance.random() < 0.6 else None
        return Process(self, f"p{number}", chance.choice((0.0, 0.0, 2.5, 1000.0)), stops, killed)

    def now(self) -> float:
        """The true time."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _Loop)
        return loop.true_time()

    def record(self, name: str) -> dict[str, Any]:
        """What the store has under a name."""
        found: dict[str, Any] = orjson.loads(self.values.get(name, b"{}"))
        return found

    def complain(self, what: str) -> None:
        """Something went as it must not."""
        if not self.is_over:
            self.wrong.append(f"{self.now():.4f} {what}")

    def answer_time(self) -> float:
        """When the store looks, by its own clock."""
        return self.now() + self._store_ahead

    def way(self) -> float:
        """How long a message takes."""
        return min(self.random.expovariate(1 / self._latency), 5 * self._latency)

    def fails(self) -> bool:
        """Whether a message does not come through."""
        now = self.now()
        if any(begin <= now < end for begin, end in self._outages):
            return True
        return now < KIND_FROM and self.random.random() < self._fails

    def _periods(self, count: int, longest: float) -> list[tuple[float, float]]:
        """So many, apart from each other, before the world turns kind."""
        begins = [KIND_FROM * (place + self.random.random() / 2) / count for place in range(count)]
        longest = min(longest, KIND_FROM / (2 * count)) if count else longest
        return [(begin, begin + self.random.uniform(0.1, 1) * longest) for begin in begins]


class _Scope(SharedLimit):
    """The store of the world, for a process."""

    def __init__(self, process: Process) -> None:
        super().__init__("sqlite:///simulated.db", name="simulated")
        self._process = process

    def records(self) -> _Records:
        return _Records(self._process)


class _Records(Compared):
    """A process's connection to the store."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._looked = 0.0

    async def look(self, name: str) -> tuple[bytes | None, float]:
        def do() -> tuple[bytes | None, float]:
            self._looked = self._world.now()
            return self._world.values.get(name), self._world.answer_time()

        return await self._asked(do)

    async def swap(self, name: str, old: bytes | None, new: bytes) -> bool:
        def do() -> bool:
            done = self._world.values.get(name) == old
            if done:
                self._world.values[name] = new
                self._process.heard.append(self._looked)
            return done

        return await self._asked(do)

    async def _asked(self, do: Callable[[], T]) -> T:
        world, loop = self._world, asyncio.get_running_loop()
        if world.is_over:
            raise OSError("the story is over")
        answer: asyncio.Future[T] = loop.create_future()

        def arrives() -> None:
            if world.is_over:
                return
            if world.fails():
                loop.call_later(world.way(), comes_back, None, OSError("it was not there"))
                return
            found = do()
            lost = OSError("it did not answer") if world.fails() else None
            loop.call_later(world.way(), comes_back, found, lost)

        def comes_back(found: Any, lost: OSError | None) -> None:
            if answer.done():
                pass  # it was waited for too long
            elif lost is None:
                answer.set_result(found)
            else:
                answer.set_exception(lost)

        Context().run(loop.call_later, world.way(), arrives)
        return await answer


def tell(world: World, main: Callable[[], Awaitable[None]]) -> None:
    """
    Tell the story of a world: `main` starts processes; when it is done, the story is over.

    Raises:
        StoryFailed: if something went as it must not.
    """

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: world.complain(_told(context)))
        await main()
        world.is_over = True
        for _ in range(100):
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if not left:
                break
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=_AFTERWARDS)

    chance = random.getstate()
    random.seed(f"{world.seed} module")
    try:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(story())
    finally:
        random.setstate(chance)
    if world.wrong:
        raise StoryFailed(f"{world.seed}: " + "; ".join(world.wrong[:5]))


def _told(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"the loop was told: {context['message']}" + (f": {describe_error(error)}" if error else "")
