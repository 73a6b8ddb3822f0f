"""
The world of a simulation: what outlives a process, and the lives that it leads one after the other.

Theory of operation
-------------------
A *life* is one run of the process: an event loop of its own, and everything that it remembers. The *world* is
what a crash does not take away: the checkpoints in the store, what sinks have on their disks, and the input.

A crash cuts the life off from the world, in the middle of whatever it was doing. From then on nothing that
its code does reaches the disks, clean-up code included; the loop stops, and its tasks are thrown away.

Between two lives something may be damaged in the store. The next life then goes on from the newest checkpoint
that is whole, from which on there is no way back; or it refuses, as it must where a sink has committed more,
and what was damaged is brought back from a backup.

All chance comes from one seed. Each life has a stream of random numbers of its own, so what a dying process
still does cannot change what happens to the next one.

What is explored: how long everything takes, and with it the order in which timers fire, also of those set for
the same instant (each is late by a random part of a microsecond); how input falls into batches; when
checkpoints are taken; and when, where and how a life ends. Not explored: other orders of callbacks that are
ready at the same time, because asyncio promises to run them first in, first out; and threads, because none is
used for checkpoints as small as these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Any, TypeVar, TypeVarTuple

from asyncstream.checkpoint.format import unpack_info
from asyncstream.testing.loop import VirtualTimeLoop, waiting
from asyncstream.validation import count, real_number

__all__ = ("FaultPlan", "Life", "ShufflingLoop", "SimulatedDisk", "SimulatedFailure", "World")

Ts = TypeVarTuple("Ts")
In = TypeVar("In")
Out = TypeVar("Out")

EPOCH_MS = 1_700_000_000_000
"""What the clock of the first life shows at first."""


class SimulatedFailure(Exception):
    """Raised when the simulated world fails a process: a service, a disk or a network that is not there."""


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """
    How unkind the world is. Chances are between 0 and 1, times are seconds of virtual time.

    Attributes:
        lives: after so many lives nothing goes wrong any more, so that the pipeline can come to its end.
        crash_after: how long a life lasts, on average, until it is cut short.
        crash: chance that an access to the outside (read, write, append, capture, prepare, put, save, commit,
            delete) is the last thing a life does, before it, after it, or in the middle.
        stop: chance that a life that would be cut short is stopped in an orderly way instead.
        drain: chance that the orderly way is to drain it. Windows that are open then fire before their time.
        damage: chance that between two lives a manifest or a part is lost or damaged in the store.
        failure: chance that an access to the outside fails.
        pause: chance that one takes long.
        latency: how long one takes, on average.
        long: how long one takes that takes long, at most.
        checkpoint_every: time between two requests for a checkpoint, on average.

    Raises:
        PipelineError: if a chance is none, or a time is below 0; `latency` and `checkpoint_every` are above.
    """

    lives: int = 8
    crash_after: float = 1.5
    crash: float = 0.02
    stop: float = 0.2
    drain: float = 0.0
    damage: float = 0.0
    failure: float = 0.01
    pause: float = 0.05
    latency: float = 0.01
    long: float = 0.5
    checkpoint_every: float = 0.2

    def __post_init__(self) -> None:
        count("lives", self.lives, least=0)
        for name in ("crash", "stop", "drain", "damage", "failure", "pause"):
            real_number(name, getattr(self, name), "a chance from 0 to 1", lambda chance: 0 <= chance <= 1)
        for name in ("crash_after", "long"):
            real_number(name, getattr(self, name), "seconds, at least 0", lambda time: 0 <= time < inf)
        for name in ("latency", "checkpoint_every"):
            real_number(name, getattr(self, name), "seconds above 0", lambda time: 0 < time < inf)

    def kind(self) -> FaultPlan:
        """The same world, in which nothing goes wrong."""
        return replace(self, crash_after=0.0, crash=0.0, stop=0.0, damage=0.0, failure=0.0)


@dataclass
class SimulatedDisk:
    """
    What a sink keeps in the world.

    Attributes:
        exactly_once: whether what is written twice can be told from what is there twice.
        committed: what readers see; it cannot be taken back.
        staged: what follows it, safe but not to be seen yet.
    """

    exactly_once: bool
    committed: list[Any] = field(default_factory=list)
    staged: list[Any] = field(default_factory=list)


@dataclass
class World:
    """
    What a crash does not take away.

    Attributes:
        seed: where all chance comes from.
        events: the input.
        checkpoints: the manifests that the store holds, by number.
        parts: the parts that it holds, by name.
        journal: the files of its journal of finished calls, by name.
        lease: the number of the lease that it has given last.
        torn: numbers of the checkpoints that were cut off in the middle.
        damaged: numbers of manifests and names of parts that were damaged or lost in the store.
        backup: what they were before, as long as no process has gone on without them.
        disks: what each sink holds, by its name.
        trace: everything that has happened: life, virtual time, what, and details.
        wrong: what must not happen, and did.
    """

    seed: int
    events: Sequence[Any]
    checkpoints: dict[int, bytes] = field(default_factory=dict)
    parts: dict[str, bytes] = field(default_factory=dict)
    journal: dict[str, bytes] = field(default_factory=dict)
    lease: int = 0
    torn: set[int] = field(default_factory=set)
    damaged: set[int | str] = field(default_factory=set)
    backup: dict[int | str, bytes] = field(default_factory=dict)
    disks: dict[str, SimulatedDisk] = field(default_factory=dict)
    trace: list[tuple[int, float, str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def damage(self, random: Random) -> int | str | None:
        """Damage a manifest, or lose or damage a part; gives its number or name, None if there is none."""
        named = {name for manifest in self._manifests().values() for name in unpack_info(manifest).stored}
        whole: list[int | str] = [
            *sorted(self._manifests()),
            *sorted(named & self.parts.keys() - self.damaged),
        ]
        if not whole:
            return None
        what = random.choice(whole)
        self.damaged.add(what)
        kept: dict[Any, bytes] = self.checkpoints if isinstance(what, int) else self.parts
        data = self.backup[what] = kept[what]
        how = random.choice(("lost", "cut off", "changed"))
        if how == "lost" and isinstance(what, str):
            del kept[what]
        elif how == "changed":
            at = random.randrange(len(data))
            kept[what] = data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        else:
            kept[what] = data[: random.randrange(len(data))]
        return what

    def mend(self) -> None:
        """Bring back from a backup what was damaged or lost."""
        for what, data in self.backup.items():
            kept: dict[Any, bytes] = self.checkpoints if isinstance(what, int) else self.parts
            kept[what] = data
        self.damaged -= self.backup.keys()
        self.backup.clear()

    def newest_whole(self) -> int | None:
        """The number of the newest checkpoint of which nothing is damaged or lost; None: there is none."""
        return max(
            (n for n, data in self._manifests().items() if not unpack_info(data).stored & self.damaged),
            default=None,
        )

    def _manifests(self) -> dict[int, bytes]:
        """Those that are whole, by number."""
        bad = self.torn | self.damaged
        return {number: data for number, data in self.checkpoints.items() if number not in bad}


class Life:
    """
    One life of the simulated process; a pipeline is built anew for each.

    It is also the process' `Clock`.

    Args:
        world: what it may leave traces in.
        number: which life; starts at 1.
        plan: what may happen to it.

    Attributes:
        random: this life's random numbers; for all chance in the pipeline, such as `retry(random=...)`.
        is_kind: nothing goes wrong in it.
        is_over: nothing that its code does reaches the world any more.
        on_stop: stops or drains the job in an orderly way; None while there is none to stop.
        loop: its event loop.
    """

    def __init__(self, world: World, number: int, plan: FaultPlan) -> None:
        self.world = world
        self.number = number
        self.plan = plan
        self.random = Random(f"{world.seed} {number}")
        self.is_kind = plan == plan.kind()
        self.is_over = False
        self.on_stop: Callable[[], None] | None = None
        # clocks are set anew between two lives, sometimes to the past
        self._born_ms = EPOCH_MS + round(number * self.random.uniform(-1_000, 60_000))
        self.loop = ShufflingLoop(Random(f"{world.seed} {number} timers"))

    def now_ms(self) -> int:
        return self._born_ms + self.loop.now_ms()

    def note(self, what: str, detail: Any = None) -> None:
        """Add to the trace of the world."""
        if not self.is_over:
            self.world.trace.append((self.number, self.loop.time(), what, detail))

    def complain(self, what: str) -> None:
        """Something happened that a pipeline must not do: the simulation fails."""
        if not self.is_over:
            self.note("wrong", what)
            self.world.wrong.append(what)

    # ------------------------------------------------------------------ how it ends

    def end(self, why: str) -> None:
        """Crash: nothing reaches the world from here on."""
        if not self.is_over:
            self.note("crash", why)
            self.is_over = True
            self.loop.stop()

    def leave(self, work: object) -> None:
        """Its work is done."""
        if not self.is_over:
            self.loop.stop()

    def hang(self) -> None:
        """It has lasted for longer than anything takes."""
        if not self.is_over:
            self.note("wrong", "it hangs")  # not where: names of tasks differ from run to run
            self.world.wrong.append(f"it hangs; {waiting()}")
            self.end("it hangs")

    def end_some_time(self) -> None:
        """Crash at a random instant: some time from now, and some passes of the loop later."""
        if self.plan.crash_after:
            hops = self.random.randrange(12)
            self.loop.call_later(self.random.expovariate(1 / self.plan.crash_after), self._approach, hops)

    def _approach(self, hops: int) -> None:
        if hops:
            self.loop.call_soon(self._approach, hops - 1)
        elif self.random.random() >= self.plan.stop or not self.stop():
            self.end("at any time")

    def stop(self) -> bool:
        """Have the job stopped in an orderly way; False if it cannot be any more."""
        if self.on_stop is None:
            return False
        self.note("stop")
        self.on_stop()
        return True

    # ------------------------------------------------------------------ what the outside does to it

    def ends_in(self, what: str) -> bool:
        """Whether the process ends right here; if so, it just has."""
        if not self.is_over and self.random.random() < self.plan.crash:
            self.end(f"in {what}")
        return self.is_over

    def cut(self, what: str, size: int) -> int:
        """How much of `size` gets done: all of it, unless the process ends in the middle."""
        if self.is_over:
            return 0
        return self.random.randint(0, size) if self.ends_in(what) else size

    async def latency(self, longest: float | None = None) -> None:
        """
        Take a while; sometimes none at all, sometimes long.

        Args:
            longest: seconds at most; the plan's `long` if left out.
        """
        longest = self.plan.long if longest is None else longest
        chance = self.random.random()
        if chance < self.plan.pause:
            await asyncio.sleep(self.random.uniform(0, longest))
        elif chance < 0.7:
            await asyncio.sleep(min(longest, self.random.expovariate(1 / self.plan.latency)))
        elif chance < 0.85:
            await asyncio.sleep(0)

    async def access(self, what: str, chance: float | None = None) -> None:
        """
        Access the outside: takes a while, and may fail, or be the last thing that the process does.

        Args:
            what: for the trace.
            chance: that it fails; the plan's `failure` if left out.

        Raises:
            SimulatedFailure: if it fails.
        """
        await self.latency()
        if self.ends_in(what):
            return
        if self.random.random() < (self.plan.failure if chance is None else chance):
            self.note("failure", what)
            raise SimulatedFailure(what)

    def unreliable(
        self, function: Callable[[In], Awaitable[Out]], chance: float | None = None
    ) -> Callable[[In], Awaitable[Out]]:
        """
        An async function as a service far away: it takes a while, and sometimes fails.

        Args:
            function: what the service does.
            chance: that a call fails, unless nothing goes wrong in this life; the plan's if left out.
        """
        name = str(getattr(function, "__name__", "service"))
        if self.is_kind:
            chance = None

        async def call(value: In) -> Out:
            await self.access(name, chance)
            return await function(value)

        return call


class ShufflingLoop(VirtualTimeLoop):
    """Virtual time in which timers set for the same instant fire in any order, as asyncio allows."""

    def __init__(self, random: Random) -> None:
        self._random = random
        super().__init__()

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        late = self._random.random() * 1e-6
        return super().call_at(when + late, callback, *args, context=context)
