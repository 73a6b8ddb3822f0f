"""
Leads a simulated process through its lives, and compares what is left in the world with what was expected.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from asyncstream.checkpoint import Checkpoints
from asyncstream.connectors.base import Sink, TransactionalSink
from asyncstream.errors import CheckpointError, JobStopped, SinkError, describe_error
from asyncstream.pipeline import Pipeline
from asyncstream.runtime.aio import Job
from asyncstream.testing.simulation.outside import (
    PlainSimulatedSink,
    SimulatedSink,
    SimulatedSource,
    SimulatedStore,
)
from asyncstream.testing.simulation.world import FaultPlan, Life, SimulatedDisk, SimulatedFailure, World
from asyncstream.validation import count, function, instance, refuse

__all__ = ("Simulation", "SimulationFailed", "line", "simulate")

HANGS = 3600.0
"""Seconds of virtual time after which a life is said to hang."""

PATIENCE = 100
"""Cancellations that the tasks of a life that is over get."""

READS = 30
"""Reads that few events come in: as many as let a checkpoint fall between two of them, in most stories."""

Expected: TypeAlias = Iterable[Any] | Mapping[str, Iterable[Any]]
"""What a sink is to hold; by the sinks' names if there are several."""

TRACE_SHOWN = 40
"""Last entries of the trace that a failure shows."""


@dataclass(frozen=True)
class Simulation:
    """
    A story that ended well.

    Attributes:
        seed: which one.
        lives: how many lives the process had; at least 2, the last of which finds nothing left to do.
        results: what readers of the sinks see in the end, by the sink's name.
        trace: everything that happened: life, virtual time in seconds, what, and details.
    """

    seed: int
    lives: int
    results: dict[str, list[Any]]
    trace: list[tuple[int, float, str, Any]]


class SimulationFailed(AssertionError):
    """
    Raised when a pipeline lost or doubled something, hung, or failed without a reason.

    Attributes:
        seed: of the simulation.
        trace: everything that happened.
    """

    def __init__(self, world: World, what: str, replay: str) -> None:
        last = "\n".join(f"  {line(entry)}" for entry in world.trace[-TRACE_SHOWN:])
        super().__init__(f"seed {world.seed}: {what}\nreplay it with: {replay}\nlast of the trace:\n{last}")
        self.seed = world.seed
        self.trace = world.trace


def simulate(
    make_pipeline: Callable[[Life], Pipeline],
    events: Sequence[Any] | Mapping[str, Sequence[Any]],
    expected: Expected | None = None,
    seed: int = 0,
    *,
    plan: FaultPlan | None = None,
    replay: str | None = None,
    types: Iterable[type] = (),
) -> Simulation:
    """
    Run a pipeline on virtual time, in as many lives as it takes to read all events.

    Args:
        make_pipeline: builds the pipeline for one life of the process.
        events: made of values that checkpoints keep. By the names of the sources: what is read in their
            place; others stand in for the sinks, too, and the pipeline is your own as it is. A sequence: what
            `SimulatedSource` reads; the pipeline then has simulated sources and sinks.
        expected: what the sink is to hold in the end, in any order; by the sinks' names if there are several,
            of which those that are not named may hold anything.
            A `PlainSimulatedSink` may hold elements more often than expected, though not less often. None:
            what the sinks hold after a life in which nothing goes wrong.
        seed: where all chance comes from; that of the module `random`, too. At least 0.
        plan: how unkind the world is.
        replay: the command that tells this story again, for the message of a failure.
        types: classes that the values are made of, as in `Checkpoints`.

    Raises:
        SimulationFailed: if the sink does not hold what is expected, or something else went wrong on the way.
        PipelineError: if an argument is not as described.
    """
    function("make_pipeline", make_pipeline, "life")
    plan = instance("plan", FaultPlan() if plan is None else plan, FaultPlan)
    if isinstance(events, str) or not isinstance(events, Mapping | Sequence):
        raise refuse("events", "a sequence, or sequences by the names of sources", events)
    if not isinstance(types, Iterable):
        raise refuse("types", "a list of classes", types)
    if expected is not None and (isinstance(expected, str) or not isinstance(expected, Iterable)):
        raise refuse("expected", "what the sink is to hold, or that by the names of sinks", expected)
    count("seed", seed, least=0)
    replay = replay or f"simulate(..., seed={seed})"
    types = tuple(types)
    make: Callable[[Life], Pipeline] = partial(_made, make_pipeline)
    if isinstance(events, Mapping):
        make = partial(_in_the_world, make, events)
        events = []
    if expected is None:
        undisturbed = _tell(make, World(seed, events), replace(plan.kind(), lives=0), replay, types)
        expected = undisturbed.results
    world = World(seed, events)
    told = _tell(make, world, plan, replay, types)
    if not isinstance(expected, Mapping):
        if len(world.disks) != 1:
            raise SimulationFailed(
                world, f"expected: say by name what each sink is to hold; {_sinks(world)}", replay
            )
        expected = dict.fromkeys(world.disks, expected)
    for name, wanted in expected.items():
        if name not in world.disks:
            raise SimulationFailed(world, f"there is no sink {name!r}; {_sinks(world)}", replay)
        if wrong := _difference(wanted, world.disks[name]):
            raise SimulationFailed(world, f"{name}: {wrong}", replay)
    return told


def _sinks(world: World) -> str:
    return f"there is {', '.join(map(repr, world.disks)) or 'none'}"


def _made(make_pipeline: Callable[[Life], Pipeline], life: Life) -> Pipeline:
    pipeline = make_pipeline(life)
    if not isinstance(pipeline, Pipeline):
        raise refuse("make_pipeline", "a function that returns a Pipeline", pipeline)
    return pipeline


def _in_the_world(
    make_pipeline: Callable[[Life], Pipeline], events: Mapping[str, Sequence[Any]], life: Life
) -> Pipeline:
    """The user's own pipeline, which reads these events, and writes to the world."""

    def stand_in(name: str, sink: Sink[Any]) -> Sink[Any]:
        if isinstance(sink, TransactionalSink):
            return SimulatedSink(life, name)
        return PlainSimulatedSink(life, name)

    sources = {
        name: SimulatedSource(life, ours, batch=max(1, min(10, len(ours) // READS)))
        for name, ours in events.items()
    }
    return make_pipeline(life).with_ends(sources=sources, sinks=stand_in)


def _tell(
    make: Callable[[Life], Pipeline], world: World, plan: FaultPlan, replay: str, types: tuple[type, ...]
) -> Simulation:
    """Lead one life after the other."""
    number, finished = 0, 0
    while finished < 2:  # a pipeline that has finished and is started again must not add anything
        number += 1
        is_kind = number > plan.lives
        life = Life(world, number, plan.kind() if is_kind else plan)
        chance = random.Random(f"{world.seed} {number} damage")
        if chance.random() < life.plan.damage and (damaged := world.damage(chance)) is not None:
            life.note("damage", damaged)
        try:
            ended = _lead(life, make, types)
        except _Unexplained as unexplained:
            raise SimulationFailed(world, str(unexplained), replay) from unexplained.__cause__
        if world.wrong:
            raise SimulationFailed(world, "; ".join(world.wrong), replay)
        if world.backup:
            world.mend()  # the process has refused to go on, or was cut short before it could
        if is_kind and not ended:
            raise SimulationFailed(world, f"life {number} did not come to its end", replay)
        finished += ended
    results = {name: list(disk.committed) for name, disk in world.disks.items()}
    return Simulation(world.seed, number, results, world.trace)


class _Unexplained(Exception):
    """A life ended in a way that the simulated world is not to blame for."""


def _lead(life: Life, make_pipeline: Callable[[Life], Pipeline], types: tuple[type, ...]) -> bool:
    """Lead a life to its end; whether the pipeline came to its own."""
    loop = life.loop
    loop.set_exception_handler(lambda loop, context: life.complain(_told(context)))
    chance = random.getstate()
    random.seed(f"{life.world.seed} {life.number} module")
    work = loop.create_task(_run(life, make_pipeline, types))
    work.add_done_callback(life.leave)
    life.end_some_time()
    hanging = loop.call_later(HANGS, life.hang)
    try:
        loop.run_forever()
        crashed, life.is_over = life.is_over, True
        hanging.cancel()
        # the tasks could just as well be forgotten, if Python did not complain of that
        for _ in range(PATIENCE):
            tasks = asyncio.all_tasks(loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=60))
    finally:
        loop.close()
        random.setstate(chance)
    if crashed:
        return False
    return work.result()


async def _run(life: Life, make_pipeline: Callable[[Life], Pipeline], types: tuple[type, ...]) -> bool:
    life.note("start")
    stopped = False
    torn_only = set(life.world.checkpoints) <= life.world.torn
    newest = life.world.newest_whole()
    checkpoints = Checkpoints(
        store=SimulatedStore(life),
        every=life.random.choice((None, 0.2, 1.0)),
        keep=life.random.randint(1, 3),
        timeout=300.0 if life.is_kind else life.random.choice((0.3, 300.0)),
        tolerate=life.random.randint(0, 3),
        inline_bytes=life.random.choice((0, 100, 10_000)),
        # a store of which the very first checkpoint was cut off: nothing has been read then
        restore="none" if torn_only else "newest",
        types=types,
    )
    try:
        async with make_pipeline(life).start(clock=life, checkpoints=checkpoints) as job:
            _went_on(life, job, newest)
            asking = asyncio.create_task(_ask_for_checkpoints(life, job))

            def stop() -> None:
                nonlocal stopped
                stopped = True
                life.on_stop = None
                stopping.append(asyncio.create_task(_stop(life, job)))

            stopping: list[asyncio.Task[Any]] = []
            life.on_stop = stop
            try:
                await job.wait()
            finally:
                life.on_stop = None
                asking.cancel()
                await asyncio.gather(asking, *stopping, return_exceptions=True)
    except Exception as error:
        refused = life.world.backup and isinstance(error, CheckpointError | SinkError)
        if not refused and not _is_explained(error):
            raise _Unexplained(f"the job failed: {describe_error(error)}") from error
        life.note("refused" if refused else "failed", describe_error(error))
        return False
    life.note("stopped" if stopped else "finished")
    return not stopped


def _went_on(life: Life, job: Job, newest: int | None) -> None:
    """A life has gone on, which should be from the checkpoint `newest`; there is no way back from that."""
    found = None if job.resumed_from is None else job.resumed_from.id
    if found != newest:
        life.complain(f"it goes on from checkpoint {found}, and the newest that is whole is {newest}")
    if not life.is_over:
        if newest is not None and newest < max(life.world.checkpoints.keys() - life.world.torn):
            life.note("went back", newest)
        life.world.backup.clear()


async def _stop(life: Life, job: Job) -> None:
    if life.random.random() < life.plan.drain:
        life.note("drain")
        with suppress(TimeoutError):
            await job.drain(life.random.choice((0.1, 10.0)))
    await job.stop(life.random.choice((0.0, 0.1, 10.0)))


async def _ask_for_checkpoints(life: Life, job: Job) -> None:
    while True:
        await asyncio.sleep(life.random.expovariate(1 / life.plan.checkpoint_every))
        requests = [job.checkpoint() for _ in range(life.random.choice((1, 1, 1, 2)))]
        for info in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(info, CheckpointError | JobStopped):
                life.note("no checkpoint", describe_error(info))
            elif isinstance(info, BaseException):
                life.complain(f"a checkpoint failed: {describe_error(info)}")
            else:
                life.note("checkpoint", info.id)


def _is_explained(error: BaseException | None) -> bool:
    """Whether the simulated world is to blame for an error: it failed, or took too long for a checkpoint."""
    of_checkpoint = isinstance(error, CheckpointError)
    while error is not None:
        if isinstance(error, SimulatedFailure) or (of_checkpoint and isinstance(error, TimeoutError)):
            return True
        error = error.__cause__
    return False


def _told(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"the loop was told: {context['message']}" + (f": {describe_error(error)}" if error else "")


def _difference(expected: Iterable[Any], disk: SimulatedDisk) -> str:
    """What is wrong with what a sink holds; empty if nothing is."""
    wanted, there = Counter(map(repr, expected)), Counter(map(repr, disk.committed))
    missing, extra = wanted - there, there - wanted
    if not disk.exactly_once:
        extra = Counter({value: count for value, count in extra.items() if value not in wanted})
    parts = []
    if missing:
        parts.append("missing: " + ", ".join(missing.elements()))
    if extra:
        parts.append("too much: " + ", ".join(extra.elements()))
    return "; ".join(parts)


def line(entry: tuple[int, float, str, Any]) -> str:
    """An entry of a trace, for people to read."""
    life, seconds, what, detail = entry
    return f"life {life} {seconds:11.6f} {what}" + ("" if detail is None else f" {detail}")
