"""
What a step does, known before anything runs: a frozen spec that makes its operator and answers for it.

A plan holds specs; each run has them `build` operators of its own. A planner (which checks a graph, cuts
it into stages, describes it, says how a runtime differs, finds state again) asks the spec. A planner neither
makes an operator to look at it, nor asks which class something is: that would have to be extended with every
new kind of step. A new kind states its own traits here, and all planners know it.

A spec is sent to other processes, so what it holds can be pickled wherever the user's functions can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, TypeAlias

from asyncstream.eventtime import WatermarkStrategy
from asyncstream.operators.base import Operator
from asyncstream.operators.functions import AsyncFunction
from asyncstream.state.schema import Schema, described

__all__ = (
    "MOST_FRAMES",
    "Calls",
    "ClockUse",
    "EventTime",
    "JournalUse",
    "KeyBy",
    "KeyedSpec",
    "Lend",
    "Spec",
    "no_key",
)

KeyBy: TypeAlias = Callable[[Any], Any]
"""Gives the key of an element."""

Lend: TypeAlias = Callable[[AsyncFunction[Any, Any]], AsyncFunction[Any, Any]]
"""Gives for an async function of the user's one that is to be called in its place."""

MOST_FRAMES: Final = 12
"""Calls inside one another from a step to the next, of a kind that does not say: none has more."""


class ClockUse(Enum):
    """What processing time is to a step."""

    NONE = "none"
    """It never asks."""

    MAY_EMIT = "may emit"
    """The clock may make it emit."""

    WAITS = "waits"
    """It does nothing of use unless the clock advances."""


def no_key(element: object) -> None:
    """The key of every element where there are no keys."""


@dataclass(frozen=True)
class EventTime:
    """
    How a step gives elements their event time, and the stream its watermarks.

    Attributes:
        strategy: how watermarks are found.
        idle_after_ms: after how long without an element, in processing time, the stream is idle; None: never.
        max_drift_ms: how far one split of a source may be ahead of the slowest; None: as far as it gets.
    """

    strategy: WatermarkStrategy
    idle_after_ms: int | None = None
    max_drift_ms: int | None = None


@dataclass(frozen=True)
class Calls:
    """
    The async calls that a step makes.

    Attributes:
        concurrency: how many run at once, at most.
        order: in what order results leave the step, as the user says it.
        is_per_key: that order is one within each key, and keeps results of other keys nowhere.
        is_opened: what is called is opened before the first call, and closed after the last.
        function: what is called; None: several functions.
    """

    concurrency: int
    order: str
    is_per_key: bool
    is_opened: bool
    function: object = None


@dataclass(frozen=True)
class JournalUse:
    """
    How the finished calls of a step are to be written down.

    Attributes:
        fingerprint: tells the function from another one of the same name.
        waits: results go on only when they are on the disk.
        by_default: the user has not asked for it: only where it can be done.
        by_position: elements are told from each other by where they come from.
    """

    fingerprint: str
    waits: bool
    by_default: bool
    by_position: bool


@dataclass(frozen=True)
class Spec:
    """
    Base of all specs: of a step that passes everything on unchanged, and has nothing to say for itself.

    A subclass is a frozen dataclass of checked settings. What does not depend on them it says by an attribute
    of the class, without an annotation, which would make it a setting.
    """

    def build(self) -> Operator:
        """A fresh operator, for one run."""
        return Operator()

    def make(self) -> Operator:
        """What `build` gives, which can tell that a key function has failed."""
        operator = self.build()
        operator.keyed_by = tuple(key for key in self.keys if key is not None)
        return operator

    @property
    def operator(self) -> type[Operator]:
        """The class of what `build` gives; what one class remembers is for no other."""
        return Operator

    # ------------------------------------------------------------------ inputs and outputs

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        """For each port the key by which its elements must come together, in order; None: they need not."""
        return (None,)

    @property
    def table_port(self) -> int | None:
        """The input in which others are looked up: of what comes together it comes first; None: none is."""
        return None

    @property
    def overhears(self) -> bool:
        """
        Operators that divide the keys among them may each have all that comes by an input without a key: one
        speaks for it, the others overhear it (`Operator.overhearing`).
        """
        return False

    def of_ports(self, ports: Sequence[int]) -> Spec:
        """If each of its inputs does without the others: the same, of these alone."""
        return self

    @property
    def required(self) -> tuple[str, ...]:
        """Tags of outputs that must be read, for elements would vanish otherwise."""
        return ()

    @property
    def owns(self) -> object:
        """An object of the user's that serves this step alone, since it remembers things; None: none."""
        return None

    @property
    def frames(self) -> int:
        """Calls inside one another from this step to the next, at most."""
        return MOST_FRAMES

    @property
    def is_chained(self) -> bool:
        """The first of several such steps in a row runs them all, without a call of one by another."""
        return False

    @property
    def reads(self) -> frozenset[str] | None:
        """
        The fields of its elements, which are dicts, that it looks at itself; None: any.

        What it `passes_on` is looked at by others.
        """
        return None

    def passes_on(self, tag: str | None) -> bool:
        """
        Whether what it emits by an output may be elements that it has read, as they are.

        Args:
            tag: of the output; None: the main one.
        """
        return True

    def keeps_origins(self, tag: str | None) -> bool:
        """
        Whether what it emits by an output is known by where it comes from, if what it reads is.

        Args:
            tag: of the output; None: the main one.
        """
        return False

    @property
    def asks_origins(self) -> bool:
        """It can make use of where elements come from."""
        return False

    @property
    def needs_origins(self) -> bool:
        """It must know where elements come from."""
        return False

    @property
    def needs_loop(self) -> str | None:
        """What it does in an event loop that lasts as long as the job, in words; None: nothing."""
        return None

    # ------------------------------------------------------------------ what it remembers and counts

    @property
    def schema(self) -> Schema | None:
        """
        What its operator remembers; None: nothing.

        A step with a key remembers something of it, whatever its settings are, unless it says more.
        """
        if all(key is None for key in self.keys):
            return None
        return Schema(settings={one.name: described(getattr(self, one.name)) for one in fields(self)})

    @property
    def keeps_only_watermarks(self) -> bool:
        """What it remembers is how far event time has come, which a runtime with its own watermarks knows."""
        return False

    @property
    def counters(self) -> tuple[str, ...]:
        """The names of those of its operator's metrics that only ever grow."""
        return ()

    @property
    def peaks(self) -> tuple[str, ...]:
        """The names of metrics that are the most there has been of something at once."""
        return ()

    # ------------------------------------------------------------------ time

    @property
    def clock(self) -> ClockUse:
        """What processing time is to it."""
        return ClockUse.NONE

    @property
    def event_time(self) -> EventTime | None:
        """How it gives elements their event time; None: they keep what they have."""
        return None

    @property
    def prolongs_event_time(self) -> bool:
        """It passes watermarks on, and gives further ones while no element comes."""
        return False

    @property
    def has_own_watermark(self) -> bool:
        """It goes by a watermark from its own elements, and tells others none but the last."""
        return False

    @property
    def has_user_timers(self) -> bool:
        """The user's code sets timers, and may set them back or delete them."""
        return False

    def with_watermarks(self, strategy: WatermarkStrategy) -> Spec:
        """If it gives elements event time: the same, with watermarks found so, and never idle."""
        return self

    # ------------------------------------------------------------------ async calls

    @property
    def calls(self) -> Calls | None:
        """The async calls that it makes, so that it keeps elements and passes them on later; None: none."""
        return None

    @property
    def journal(self) -> JournalUse | None:
        """How its finished calls are written down between checkpoints; None: they are not."""
        return None

    def with_calls(self, lend: Lend | None, held: int) -> Spec:
        """
        If it makes async calls: the same, in surroundings where functions outlive operators.

        Args:
            lend: gives what is called in place of an `AsyncFunction`; None: it is called itself.
            held: how many elements it may hold at least, unless the user has said how many.
        """
        return self


@dataclass(frozen=True)
class KeyedSpec(Spec):
    """
    Base of specs of steps with one input, whose elements come together by key.

    Attributes:
        key_by: gives the key of an element.
    """

    key_by: KeyBy

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return (self.key_by,)
