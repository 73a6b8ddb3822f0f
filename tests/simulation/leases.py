"""
Stories of what processes share by leases: a rate, places, the probe of a breaker, a budget.

In each some processes use it as fast as they may. Some are stopped for a while, some are killed, some leave,
and the store comes and goes. Two things are looked at. *Never too much*: what is shared is not used beyond
its limit, whatever happens. *All of it*: once the world is kind, what the dead and the slow had, and what was
lost with a message, is used again by the others, each of which has its part.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from asyncstream.guards import Budget, CircuitState, SharedBreaker, SharedConcurrency, SharedRateLimiter
from asyncstream.guards.guard import EARLY
from asyncstream.guards.shared import circuits as rule_of_circuits
from asyncstream.guards.shared import concurrency
from asyncstream.guards.shared import places as rule_of_places
from asyncstream.guards.shared.rates import lease_length
from asyncstream.guards.shared.records import SLOWEST, Moment
from asyncstream.lease import Holder
from tests.simulation.processes import END, KIND_FROM, Process, World, tell

__all__ = ("STORIES", "budget", "places", "probe", "rate")


async def until(time: float, world: World) -> None:
    """Wait for a time of the world."""
    await asyncio.sleep(max(time - world.now(), 0.0))


async def work(
    process: Process,
    callers: Sequence[Coroutine[Any, Any, None]],
    leave: Callable[[], Awaitable[None]] | None,
) -> None:
    """Let callers call; in the end, or at some time before, if it is to leave, they stop and it leaves."""
    world = process.world
    calls = [asyncio.ensure_future(caller) for caller in callers]
    if leave is None:
        await asyncio.gather(*calls)
        return
    await until(world.random.uniform(1.0, KIND_FROM + 1), world)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await leave()


async def all_of(world: World, number: int, main: Callable[[Process], Awaitable[None]]) -> list[Process]:
    """Have so many processes do it until the end. The first is one that is not killed."""
    processes = [world.process(place, dies=place > 0) for place in range(number)]
    for process in processes:
        process.start(main)
    await until(END, world)
    return processes


# ------------------------------------------------------------------ a rate


def rate(seed: int) -> None:
    """Calls start as often as they may, of different weight; some are given up while they wait."""
    world = World(f"{seed} rate")
    chance = world.random
    limit, per = chance.randint(6, 30), chance.choice((1.0, 0.5))
    starts: list[tuple[float, float]] = []

    async def caller(process: Process, limiter: SharedRateLimiter, burst: int, pause: float) -> None:
        weight = chance.choice((1, 1, 1, 0.5, 3))
        while True:
            for _ in range(burst):
                patience = chance.uniform(0, per) if chance.random() < 0.1 else None
                with suppress(TimeoutError):
                    async with asyncio.timeout(patience):
                        await limiter.acquire(weight)
                        if not world.is_over:
                            starts.append((world.now(), weight))
            if process.name != "p0" or world.now() < KIND_FROM:  # the first then takes all that it is given
                await asyncio.sleep(chance.expovariate(1 / pause))

    async def main(process: Process) -> None:
        limiter = SharedRateLimiter(limit, per=per, scope=process.scope)
        is_first = process.name == "p0"
        leaves = not is_first and chance.random() < 0.3
        burst, pause = chance.choice((1, 5)), chance.choice((0.01, 0.1, 0.5, 1e9))
        if is_first:
            pause = min(pause, 0.5)
        callers = [
            caller(process, limiter, burst, pause)
            for _ in range(limit if is_first else chance.choice((1, limit)))
        ]
        await work(process, callers, limiter.close if leaves else None)

    async def story() -> None:
        await all_of(world, chance.choice((2, 3, 4)), main)
        times = [when for when, _ in starts]
        for place, (began, _) in enumerate(starts):
            end = bisect_left(times, began + per - 2 * EARLY)
            total = sum(weight for _, weight in starts[place:end])
            if total > limit + 1e-6:
                world.complain(f"{total} of {limit} began within {per} s from {began:.4f}")
        begin = KIND_FROM + 2 * per + lease_length(per) + 1  # the last try to reach the store waits a second
        used = sum(weight for when, weight in starts if when >= begin)
        could = limit * (END - begin) / per
        if used < 0.9 * (could - limit) - 3:  # it is used in bursts
            world.complain(f"only {used} began of {could:.0f} that could, from {begin} s on")

    tell(world, story)


# ------------------------------------------------------------------ places


@dataclass
class Running:
    """
    Calls that run.

    Attributes:
        world: where.
        lease: for how long a process holds what it has without a word to the store.
        calls: of which process, and since when.
    """

    world: World
    lease: float
    calls: list[tuple[Process, float]] = field(default_factory=list)

    @contextmanager
    def one(self, process: Process) -> Iterator[None]:
        """A call of a process."""
        call = (process, self.world.now())
        self.calls.append(call)
        try:
            yield
        finally:
            self.calls.remove(call)

    def count(self) -> int:
        """How many run, of those that hold what they have been given."""
        return sum(
            # in an unkind world a process may be unable to show itself, and what it has goes to others
            not process.is_dead and (self.world.is_kind or process.was_heard(began, self.lease))
            for process, began in self.calls
        )


def places(seed: int) -> None:
    """Calls that take a while; the processes are on one machine, or each on its own."""
    world = World(f"{seed} places")
    chance = world.random
    most, together = chance.randint(1, 5), chance.random() < 0.5
    holders: list[tuple[Process, SharedConcurrency]] = []
    running = Running(world, rule_of_places.LEASE + (rule_of_places.GRACE if together else 0.0))
    takes = chance.choice((0.05, 0.3, 0.3, 1.0))
    rests = chance.choice((0.0, 0.0, 0.5))  # calls that come now and then leave places unused
    used: dict[str, float] = {}  # once the world is kind, the time of calls
    # by process and how often it had been heard before: how much longer the lease is for a store that is slow
    longer: dict[tuple[str, int], float] = {}
    begin = KIND_FROM + 2
    exchange: Any = vars(concurrency)["exchange"]  # perhaps one with a bug

    def process_of(holder: Holder) -> Process | None:
        of_token = (process for process, one in holders if one._holder and one._holder.token == holder.token)
        return next(of_token, None)

    def noted(record: Any, moment: Moment, request: rule_of_places.PlacesRequest) -> Any:
        if (process := process_of(request.holder)) is not None:  # one that leaves has no calls any more
            longer[process.name, len(process.heard)] = min(request.takes, SLOWEST)
        return exchange(record, moment, request)

    def presence(holder: Holder) -> str:
        if not together:
            return "unknown"
        process = process_of(holder)
        return "dead" if process is None or process.is_dead else "alive"

    async def caller(process: Process, limit: SharedConcurrency) -> None:
        while True:
            if rests:
                await asyncio.sleep(chance.expovariate(1 / rests))
            patience = chance.uniform(0, 0.5) if chance.random() < 0.1 else None
            try:
                async with asyncio.timeout(patience):
                    await limit.acquire()
            except TimeoutError:
                continue
            began = world.now()
            lease = rule_of_places.LEASE + longer.get((process.name, len(process.heard) - 1), 0.0)
            if not world.is_over and began >= process.heard[-1] + lease:
                world.complain(f"{process.name} begins a call without a lease")
            try:
                with running.one(process):
                    if (found := running.count()) > most:
                        world.complain(f"{found} of {most} run")
                    await asyncio.sleep(chance.expovariate(1 / takes))
            finally:
                limit.release()
            if process.name in used:
                used[process.name] += max(world.now() - max(began, begin), 0.0)

    async def main(process: Process) -> None:
        limit = SharedConcurrency(most, scope=process.scope)
        holders.append((process, limit))
        leaves = process.name != "p0" and chance.random() < 0.3
        if not leaves and process.dies is None:
            used[process.name] = 0.0
        is_first = process.name == "p0"
        callers = [
            caller(process, limit) for _ in range(most + 1 if is_first else chance.randint(1, most + 1))
        ]
        await work(process, callers, limit.close if leaves else None)

    async def story() -> None:
        await all_of(world, chance.choice((2, 2, 3)), main)
        for process, began in running.calls:
            if process.name in used:
                used[process.name] += END - max(began, begin)
        part = sum(used.values()) / (END - begin) / most
        if part < 0.5 and not rests:
            world.complain(f"{part:.0%} of {most} places were used")
        for name, time in used.items():
            if time == 0 and not rests:
                world.complain(f"{name} was given no place")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule_of_places, "presence", presence)
        patch.setattr(concurrency, "exchange", noted)
        tell(world, story)


# ------------------------------------------------------------------ the probe of a breaker


def probe(seed: int) -> None:
    """A service is down for a while, and takes its time to answer those that try it."""
    world = World(f"{seed} probe")
    chance = world.random
    world.never_away()
    running = Running(world, rule_of_circuits.LEASE)
    down, takes = (0.3, chance.uniform(2, KIND_FROM)), chance.choice((0.02, 1.5, 1.5))
    probes = chance.choice((1, 2))
    begun: dict[str, int] = {}

    async def caller(process: Process, breaker: SharedBreaker) -> None:
        while True:
            period = await breaker.enter()
            is_probe = breaker.state is not CircuitState.CLOSED
            is_down = down[0] <= world.now() < down[1]
            with running.one(process) if is_probe else nullcontext():
                if is_probe and (found := running.count()) > 1:
                    world.complain(f"{found} processes probe")
                await asyncio.sleep(takes if is_probe else 0.02)
            now = asyncio.get_running_loop().time()
            if is_down:
                breaker.failed(period, now, OSError("down"))
            else:
                breaker.succeeded(period, now)
            if world.now() > KIND_FROM + 4 and process.name in begun:
                begun[process.name] += 1
            await asyncio.sleep(chance.expovariate(1 / 0.1))

    async def main(process: Process) -> None:
        breaker = SharedBreaker(scope=process.scope, window=2.0, min_calls=5, open_for=0.5, probes=probes)
        leaves = process.name != "p0" and chance.random() < 0.3
        if not leaves and process.dies is None:
            begun[process.name] = 0
        callers = [caller(process, breaker) for _ in range(3)]
        await work(process, callers, breaker.close if leaves else None)

    async def story() -> None:
        await all_of(world, chance.choice((2, 3, 4)), main)
        for name, calls in begun.items():
            if calls < 3:
                world.complain(f"{name} made {calls} calls of a service that is back")

    tell(world, story)


# ------------------------------------------------------------------ a budget

NO_MORE = END - 3
"""From then on no new call asks."""


@dataclass
class Spending:
    """
    What a call costs.

    Attributes:
        process: whose it is.
        expected: what it is let in with.
        counts: what it counts; 0 until it is let in.
        may: what else it may count, as far as others can tell that have not heard more of its process.
        since: when that began.
        period: in which it counts; None: it was not let in, as far as its process knows.
    """

    process: Process
    expected: float
    counts: float = 0.0
    may: tuple[float, ...] = ()
    since: float = 0.0
    period: int | None = None

    def now(self, counts: float, *may: float) -> None:
        """From now on it counts so much."""
        self.counts, self.may, self.since = counts, may, self.process.world.now()

    def is_told(self) -> bool:
        """Whether the store certainly has heard of it."""
        world = self.process.world
        return world.is_kind and world.now() - self.since > 0.5

    def least(self) -> float:
        """What the store counts at least."""
        return self.counts if self.is_told() else min(self.counts, *self.may)


def budget(seed: int) -> None:
    """Calls that cost more or less than expected, of which some fail, and some are given up."""
    world = World(f"{seed} budget", latencies=(0.001, 0.02))
    chance = world.random
    limit, per = chance.choice((20.0, 80.0, 300.0)), chance.choice((None, 3.0))
    raised = limit * chance.choice((1.0, 1.5))
    off = chance.choice((0.0, 0.5))
    calls: list[Spending] = []
    open_ones: list[Budget] = []
    inexact: set[str] = set()  # processes that could not tell everything

    async def caller(process: Process, ours: Budget) -> None:
        while world.now() < NO_MORE:
            expected = chance.uniform(0.2, 2)
            actual = expected * chance.uniform(1 - off, 1 + off)
            patience = chance.uniform(0, 0.3) if chance.random() < 0.1 else None
            call = Spending(process, expected)
            call.now(0.0, expected)
            calls.append(call)
            try:
                async with asyncio.timeout(patience):
                    reserved = await ours.reserve({"usd": expected})
            except TimeoutError:
                continue
            call.period = reserved.period
            call.now(expected, expected)
            spent = sum(one.least() for one in calls if one.period == call.period)
            if spent > raised + 1e-6:
                world.complain(f"{spent} of {raised} were spent")
            if chance.random() < 0.1:
                actual = 0.0  # it fails
            try:
                await asyncio.sleep(chance.expovariate(1 / 0.1))
            except asyncio.CancelledError:
                actual = 0.0
                raise
            finally:
                ours.settle(reserved, {"usd": actual} if actual else {})
                call.now(actual, expected)
            await asyncio.sleep(chance.expovariate(1 / 0.1))

    async def main(process: Process) -> None:
        clock = ProcessClock(process)
        ours = Budget(usd=limit, per=per, scope=process.scope, clock=clock)
        leaves = process.name != "p0" and chance.random() < 0.5
        if process.dies is not None or (leaves and not world.is_kind):
            inexact.add(process.name)
        if not leaves:
            open_ones.append(ours)
        callers = [asyncio.ensure_future(caller(process, ours)) for _ in range(5)]
        if leaves:
            await until(chance.uniform(0.2, KIND_FROM), world)
        else:
            await until(KIND_FROM, world)
            ours.raise_to(usd=raised)
            await until(END - 1, world)
            spent = world.record("budget:simulated")["spent"].get("usd", 0.0)
            if per is None and ours.waiting() and spent < raised - 2:
                world.complain(f"calls of {process.name} wait though only {spent} of {raised} are spent")
        for call in callers:
            call.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        if leaves:
            await ours.close()

    async def story() -> None:
        await all_of(world, chance.choice((2, 3, 4)), main)
        record = world.record("budget:simulated")
        least = most = 0.0
        for call in calls:
            is_exact = call.process.name not in inexact
            if call.period == record["period"] or (call.period is None and not is_exact):
                may = (call.counts,) if is_exact else (call.counts, *call.may)
                least, most = least + min(may), most + max(may)
        found = record["spent"].get("usd", 0.0)
        if not least - 1e-6 <= found <= most + 1e-6:
            world.complain(f"{found} is counted as spent, and it is between {least} and {most}")

    tell(world, story)


class ProcessClock:
    """A process's clock, by the time of which budgets begin their periods."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return round((self._process.world.now() + self._process.ahead + 1e9) * 1000)


STORIES = {"rate": rate, "places": places, "probe": probe, "budget": budget}
