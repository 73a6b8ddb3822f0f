"""
What to run, not how: a graph of named steps.

A `Graph` is built once and run any number of times, by any runtime. It holds settings and specs, no
operators: each run builds its own. Steps are only ever added behind steps that exist, so the list of steps
is in topological order.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from sys import getrecursionlimit
from typing import Any, Final, NamedTuple

from asyncstream.connectors.base import Sink, Source
from asyncstream.connectors.durable import DurableSubmissions
from asyncstream.connectors.outlets import Results
from asyncstream.connectors.submissions import Submissions
from asyncstream.errors import PipelineError
from asyncstream.operators.exclusive import give_back, serves, take
from asyncstream.operators.spec import MOST_FRAMES
from asyncstream.plan.steps import Input, OperatorStep, Output, SinkStep, SourceStep, Step, ends_of
from asyncstream.validation import text

__all__ = ("Graph", "Reader")

log = logging.getLogger("asyncstream.eventtime")

RESERVED: Final = 250
"""Calls inside one another that the event loop, what is around it and the user's function may need."""


class Reader(NamedTuple):
    """A port that an output is read by."""

    step: Step
    port: int


class Graph:
    """
    The steps of a pipeline, by name, in the order in which they were added.

    Args:
        name: of the pipeline.

    Attributes:
        unnamed: the steps that the user gave no name, so that it changes with their position.
    """

    def __init__(self, name: str = "pipeline") -> None:
        self.name = name
        self.unnamed: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        self._steps: dict[str, Step] = {}
        self._ends: dict[int, Step] = {}  # by the identity of what serves a step alone
        self._readers: dict[Output, list[Reader]] = {}
        self._read: dict[str, list[Output]] = {}
        self._positions: dict[str, int] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What is copied or unpickled has ends of its own."""
        self.__dict__.update(state)
        self._ends = {id(end): step for step in self for end in ends_of(step)}

    @property
    def in_use(self) -> bool:
        """A run is under way."""
        return serves(self)

    def take(self, user: object) -> None:
        """
        Have this serve `user` alone, with its sources and sinks, which other pipelines may have, too.

        Two jobs that read one source would each have a part of its elements, and the first that ends would
        close the sink of the other. Raises `PipelineError` if one of all serves another, and takes none then.
        """
        try:
            for step, end in self._all_ends():
                take(user, step, end)
            take(user, self.name, self)
        except BaseException:
            self.give_back(user)
            raise

    def give_back(self, user: object) -> None:
        """Let others have what of it serves `user`."""
        for _, end in self._all_ends():
            give_back(user, end)
        give_back(user, self)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps.values())

    def __contains__(self, name: str) -> bool:
        return name in self._steps

    def __getitem__(self, name: str) -> Step:
        return self._steps[name]

    def name_for(self, kind: str, name: object) -> str:
        """
        The name of a new step: the user's, or one made from its kind and position.

        Raises:
            PipelineError: if it is taken, or not a non-empty text.
        """
        if name is None:
            position = self._positions.get(kind, 0) + 1
            name = kind if position == 1 else f"{kind}-{position}"
            while name in self._steps:
                position += 1
                name = f"{kind}-{position}"
            self.unnamed.add(name)
            return name
        name = text("name", name)
        if name in self._steps:
            raise PipelineError(f"name: two steps are called {name!r}; give one of them another name")
        self.unnamed.discard(name)  # the name of a step that was refused
        return name

    def add(self, step: Step) -> None:
        """
        Put `step` behind those it reads.

        Raises:
            PipelineError: if its source or sink is that of another step: each opens and closes its own; or if
                a run is under way, which would know nothing of it.
        """
        if self.in_use:
            raise PipelineError(
                f"step {step.name!r}: the pipeline is running, and goes on without it; add all steps before"
            )
        for end in ends_of(step):
            other = self._ends.setdefault(id(end), step)
            if other is not step:
                raise PipelineError(
                    f"steps {other.name!r} and {step.name!r} share one {type(end).__name__}; "
                    f"give each its own, or read one step twice, or write a union"
                )
        self._steps[step.name] = step
        self._positions[step.kind] = self._positions.get(step.kind, 0) + 1
        for port, one in enumerate(step.inputs):
            if one.output not in self._readers:
                self._read.setdefault(one.output.step, []).append(one.output)
            self._readers.setdefault(one.output, []).append(Reader(step, port))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Of the steps that are added in this block none stays if it fails, so that it can be tried again."""
        steps = list(self)
        try:
            yield
        except BaseException:
            self._begin()
            for step in steps:
                self.add(step)
            raise

    def with_ends(self, sources: Mapping[str, Source[Any]], sinks: Mapping[str, Sink[Any]]) -> Graph:
        """
        The same steps, with other sources and sinks, by name.

        Raises:
            PipelineError: if there is no such source or sink.
        """
        kinds = {SourceStep: sources, SinkStep: sinks}
        for kind, ends in kinds.items():
            names = [step.name for step in self if isinstance(step, kind)]
            for name in ends:
                if name not in names:
                    what = "source" if kind is SourceStep else "sink"
                    there_is = ", ".join(map(repr, names)) or "none"
                    raise PipelineError(f"there is no {what} {name!r}; there is {there_is}")
        other = Graph(self.name)
        other.unnamed = set(self.unnamed)
        for step in self:
            if isinstance(step, SourceStep):
                other.add(replace(step, source=sources.get(step.name, step.source)))
            elif isinstance(step, SinkStep):
                other.add(replace(step, sink=sinks.get(step.name, step.sink)))
            else:
                other.add(step)
        return other

    def _all_ends(self) -> Iterator[tuple[str, object]]:
        """Sources, what these read once, and sinks, each with the name of its step."""
        for step in self:
            if not isinstance(step, OperatorStep):
                for end in ends_of(step):
                    yield step.name, end

    def unnamed_with_state(self) -> list[str]:
        """The unnamed steps that remember something: it would be found again only by chance."""
        return [step.name for step in self if step.name in self.unnamed and step.schema is not None]

    def ports(self, output: Output) -> Sequence[Reader]:
        """The ports that read this output, in the order in which they were added."""
        return self._readers.get(output, ())

    def outputs(self, step: Step) -> list[Output]:
        """The outputs of a step that have readers, the main one first."""
        return sorted(self._read.get(step.name, ()), key=lambda output: output.tag is not None)

    def known_as(self, output: Output) -> tuple[str, ...]:
        """
        What the user calls the elements of an output: the nearest outputs of steps with names of their own
        from which they come, sorted; empty if some come from a source without.
        """
        found, ahead, seen = set[str](), [output], set[Output]()
        while ahead:
            one = ahead.pop()
            if one in seen:
                continue
            seen.add(one)
            if one.step not in self.unnamed:
                found.add(str(one))
            elif inputs := self[one.step].inputs:
                ahead += [each.output for each in inputs]
            else:
                return ()
        return tuple(sorted(found))

    def behind(self, name: str) -> list[Step]:
        """The steps that what this one emits can reach, in the order in which they were added."""
        reached = {name}
        found: list[Step] = []
        for step in self if name in self._read else ():
            if not reached.isdisjoint(one.output.step for one in step.inputs):
                reached.add(step.name)
                found.append(step)
        return found

    def ahead_of(self, name: str) -> list[Step]:
        """The steps from which something can reach this one, in the order in which they were added."""
        read = {one.output.step for one in self[name].inputs}
        for step in reversed(self._steps.values()):
            if step.name in read:
                read.update(one.output.step for one in step.inputs)
        return [step for step in self if step.name in read]

    def tracking(self, also: Collection[str] = ()) -> set[str]:
        """The steps that are to tell where elements come from: someone at or behind them asks, as `also`."""
        found: set[str] = set()
        for step in self:
            if isinstance(step, OperatorStep) and (step.spec.asks_origins or step.name in also):
                found |= {step.name, *(other.name for other in self.ahead_of(step.name))}
        return found

    def has_origins(self, inputs: Sequence[Input]) -> bool:
        """Whether the elements of all these can be told from all others by where they come from."""
        try:
            self.check_origins(inputs, argument="journal")
        except PipelineError:
            return False
        return True

    def check_origins(self, inputs: Sequence[Input], *, argument: str) -> None:
        """
        Refuse inputs whose elements cannot be told from all others by where they come from.

        Args:
            inputs: of the step that is asked to tell them from each other.
            argument: by which it is asked.

        Raises:
            PipelineError: if a source cannot be read again from a position, or elements are made on the way.
        """
        advice = 'say what tells them from each other instead: effect="id", or a function of the element'
        ahead, seen = [one.output for one in inputs], set[Output]()
        while ahead:  # not by recursion: steps may be many in a row, and reached by many ways
            output = ahead.pop()
            if output in seen:
                continue
            seen.add(output)
            step = self[output.step]
            if isinstance(step, SourceStep):
                is_known = output.tag is None and step.source.is_replayable()
                why = "have none, for it cannot be read again after a crash"
            else:
                is_known = isinstance(step, OperatorStep) and step.spec.keeps_origins(output.tag)
                why = "are made on the way"
                ahead += [one.output for one in step.inputs]
            if not is_known:
                raise PipelineError(
                    f"{argument}: expected elements that have a position in a source, and those of "
                    f"{str(output)!r} {why}; {advice}"
                )

    def check(self) -> None:
        """
        Refuse what cannot run, or would lose elements without a word, and tell of what an order cannot do.

        Raises:
            PipelineError: if there is no source, a stream that nobody reads, a step that routes elements to
                a side output that nobody reads, or a chain of steps longer than Python can call.
        """
        if not any(isinstance(step, SourceStep) for step in self):
            raise PipelineError("the pipeline has no source; start with pipeline.source(...)")
        for step in self:
            if not isinstance(step, SinkStep) and not self.ports(Output(step.name)):
                raise PipelineError(
                    f"nobody reads step {step.name!r}; end the stream with .to(...), or with .discard()"
                )
            for tag in step.required:
                if not self.ports(Output(step.name, tag)):
                    raise PipelineError(
                        f"step {step.name!r} sends elements to its output .{tag}, which nobody reads; "
                        f"end it with .{tag}.to(...), or with .{tag}.discard()"
                    )
        self._check_depth()
        self._tell_of_orders()

    def check_alone(self) -> None:
        """
        Refuse what would wait for who has the job, where nobody has: `submissions` and `results`. An inbox
        may have what an earlier job left.

        Raises:
            PipelineError: if there is such a step.
        """
        for step in self:
            source = step.source if isinstance(step, SourceStep) else None
            if isinstance(source, Submissions) and not isinstance(source, DurableSubmissions):
                what = "nobody can submit to a job that is only run, so it would never end"
            elif isinstance(step, SinkStep) and isinstance(step.sink, Results):
                what = "nobody can take the results of a job that is only run, so it would wait for that"
            else:
                continue
            advice = "use `async with pipeline.start() as job:`, or `with pipeline.start_in_thread() as job:`"
            raise PipelineError(f"step {step.name!r}: {what}; {advice}")

    def _tell_of_orders(self) -> None:
        for step in self:
            calls = step.spec.calls if isinstance(step, OperatorStep) else None
            if calls is None or calls.order != "event_time":
                continue
            ahead = [one.spec for one in self.ahead_of(step.name) if isinstance(one, OperatorStep)]
            if not any(spec.event_time for spec in ahead):
                log.warning(
                    "step %r: order='event_time' is 'unordered' here, where no watermarks come; put "
                    ".event_time(...) before it",
                    step.name,
                    extra={"step": step.name},
                )

    def _check_depth(self) -> None:
        allowed = getrecursionlimit() - RESERVED
        depths: dict[str, int] = {}
        for step in self:
            depth = max(
                (depths[one.output.step] + self._frames(one.output, step) for one in step.inputs), default=0
            )
            if depth > allowed:
                raise PipelineError(
                    f"step {step.name!r}: too many steps in a row lead here, each called by the one before, "
                    f"for Python's recursion limit of {getrecursionlimit()}; do more in each step, unite "
                    "streams at once with .union(*others), put an async step between, or setrecursionlimit"
                )
            depths[step.name] = 0 if isinstance(step, OperatorStep) and step.spec.calls is not None else depth

    def _frames(self, source: Output, step: Step) -> int:
        """How many calls inside one another lead from a step to one that reads it, at most."""
        alone = len(self.ports(source)) == 1 and source.tag is None
        if alone and _is_chained(step) and _is_chained(self[source.step]):
            return 0
        frames = step.spec.frames if isinstance(step, OperatorStep) else MOST_FRAMES
        return frames + (not alone)


def _is_chained(step: Step) -> bool:
    return isinstance(step, OperatorStep) and step.spec.is_chained
