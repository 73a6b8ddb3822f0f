"""
What a stream with keys can do without windows: the first of many, rolling results, patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from asyncstream.errors import PipelineError
from asyncstream.keyed import (
    LATE,
    TIMED_OUT,
    Best,
    Change,
    Changes,
    Match,
    MatchingSpec,
    Pattern,
    Ranking,
    Ranks,
    RollingSpec,
    Skip,
    TopSpec,
    change_log,
)
from asyncstream.operators.spec import Spec
from asyncstream.pipeline.stream import SideStreams, Stream
from asyncstream.plan import Graph, Output
from asyncstream.state import TimeToLive
from asyncstream.validation import Duration, choice, count, duration_ms, flag, function, refuse, selector

__all__ = ("KeyedResults", "PatternMatches", "PerKey")

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")


class _TopOptions(TypedDict, total=False):
    order: Literal["descending", "ascending"]
    skip: int
    ranked: bool
    ttl: Duration | TimeToLive | None
    name: str | None


class PerKey(Stream[T], Generic[K, T]):
    """A stream whose elements have a key."""

    def __init__(self, graph: Graph, output: Output, key: Callable[[T], K]) -> None:
        super().__init__(graph, output)
        self._key_by = key

    def _key(self) -> Callable[[Any], Any] | None:
        return self._key_by

    @overload
    def top(
        self,
        n: int,
        by: Callable[[T], Any] | str,
        *,
        retracts: Literal[False] = False,
        changes: None = None,
        **options: Unpack[_TopOptions],
    ) -> KeyedResults[Ranking[K, T]]: ...
    @overload
    def top(
        self,
        n: int,
        by: Callable[[T], Any] | str,
        *,
        retracts: Literal[False] = False,
        changes: Changes,
        **options: Unpack[_TopOptions],
    ) -> KeyedResults[Change[T]]: ...
    @overload
    def top(
        self: PerKey[K, Change[U]],
        n: int,
        by: Callable[[U], Any] | str,
        *,
        retracts: Literal[True],
        changes: None = None,
        **options: Unpack[_TopOptions],
    ) -> KeyedResults[Ranking[K, U]]: ...
    @overload
    def top(
        self: PerKey[K, Change[U]],
        n: int,
        by: Callable[[U], Any] | str,
        *,
        retracts: Literal[True],
        changes: Changes,
        **options: Unpack[_TopOptions],
    ) -> KeyedResults[Change[U]]: ...
    def top(
        self,
        n: int,
        by: Callable[[Any], Any] | str,
        *,
        order: Literal["descending", "ascending"] = "descending",
        skip: int = 0,
        ranked: bool = False,
        retracts: bool = False,
        ttl: Duration | TimeToLive | None = None,
        changes: Changes | None = None,
        name: str | None = None,
    ) -> KeyedResults[Any]:
        """
        The first `n` elements of each key: a `Ranking` whenever they change.

        Of elements that rank alike, the first to come is before the others. NaN, or a tuple with one, ranks
        last in either order.

        Args:
            n: how many, at least 1.
            by: what elements rank by: a function, or the name of a field.
            order: "descending": the largest are the first; "ascending": the smallest.
            skip: leave out so many before them.
            ranked: tell the places of rows in the change log.
            retracts: the elements are `Change`s of rows, as another step gives them with `changes="all"`
                (without `-U`, rows that were replaced would stay), and `by` is asked about rows. A row that
                is taken back must be equal to one that came. All rows are kept then, not `n` of them. It is
                looked for among those that rank alike, one by one: where these are many thousands, rank by
                what tells them apart, too: `by=lambda row: (row["score"], row["id"])`.
            ttl: a key whose rows have not changed for so long, in processing time, is forgotten; nothing is
                emitted for that. A `timedelta`, seconds or a `TimeToLive`; None: never.
            changes: give a change log, of `Change`s, instead: "all", or "upserts" (no `-U`).
        """
        n, skip = count("n", n), count("skip", skip, least=0)
        log = change_log(changes, ("all", "upserts"))
        if flag("ranked", ranked) and log is None:
            raise refuse("ranked", "changes= with it", ranked, "a Ranking holds rows in the order of ranks")
        choice("order", order, ("descending", "ascending"))
        ranks = Ranks(selector("by", by), order, skip + 1, skip + n)
        lives = _time_to_live(ttl)
        spec = TopSpec(self._key_by, ranks, lives, log, ranked, flag("retracts", retracts))
        details = {"n": n, "by": by, "order": order, "skip": skip or None, "ttl": ttl, "changes": changes}
        return self._results("top", name, spec, details)

    def reduce(
        self, fn: Callable[[T, T], T], *, ttl: Duration | TimeToLive | None = None, name: str | None = None
    ) -> KeyedResults[T]:
        """
        Fold the elements of each key as they come; emits for each element what they come to so far.

        Args:
            fn: makes one of what there is, or the first element, and the next; it changes neither of them.
            ttl: a key without an element for so long, in processing time, begins anew: a `timedelta`, seconds
                or a `TimeToLive`; None: never.
        """
        fold = function("fn", fn, "before", "element", gives=True)
        return self._rolling("reduce", fold, {"fn": fn}, ttl, name)

    def min_by(
        self,
        by: Callable[[T], Any] | str,
        *,
        ttl: Duration | TimeToLive | None = None,
        name: str | None = None,
    ) -> KeyedResults[T]:
        """
        For each element the one of its key with the smallest value so far; of equal ones the first. NaN,
        or a tuple with one, gives way to any other.

        Args:
            by: gives the value: a function, or the name of a field.
            ttl: as for `reduce`.
        """
        return self._rolling("min_by", Best(selector("by", by), largest=False), {"by": by}, ttl, name)

    def max_by(
        self,
        by: Callable[[T], Any] | str,
        *,
        ttl: Duration | TimeToLive | None = None,
        name: str | None = None,
    ) -> KeyedResults[T]:
        """As `min_by`, with the largest value."""
        return self._rolling("max_by", Best(selector("by", by), largest=True), {"by": by}, ttl, name)

    def pattern(
        self, pattern: Pattern[T], *, skip: Skip = "none", name: str | None = None
    ) -> PatternMatches[Match[K, T]]:
        """
        Find elements of a key that follow each other as a pattern says.

        Elements are looked at in the order of their event time, once the watermark has passed them, those of
        one time as they came. What the watermark has reached before it came goes to `.late`.

        Args:
            pattern: made with `Pattern.begin`.
            skip: "none": every match is given, also those that share elements; "past_last_event": with a
                match, all that has begun before its end is given up, and of several matches with the same end
                only the first is given.
        """
        if not isinstance(pattern, Pattern):
            raise refuse("pattern", "a Pattern", pattern, "begin one with Pattern.begin(name, condition)")
        pattern.check()
        spec = MatchingSpec(self._key_by, pattern, choice("skip", skip, ("none", "past_last_event")))
        stages = ", ".join(stage.name for stage in pattern.stages)
        output = self._step("pattern", name, spec, {"stages": stages, "skip": skip})
        return PatternMatches(self._graph, output, (LATE, TIMED_OUT))

    def _rolling(
        self,
        kind: str,
        reduce: Callable[[Any, Any], Any],
        details: Mapping[str, object],
        ttl: Duration | TimeToLive | None,
        name: str | None,
    ) -> KeyedResults[T]:
        lives = _time_to_live(ttl)
        return self._results(kind, name, RollingSpec(self._key_by, reduce, lives), {**details, "ttl": ttl})

    def _results(
        self, kind: str, name: str | None, spec: Spec, details: Mapping[str, object]
    ) -> KeyedResults[Any]:
        sides = (LATE,) if "late_dropped" in spec.counters else ()
        return KeyedResults(self._graph, self._step(kind, name, spec, details), sides)


class KeyedResults(SideStreams[T]):
    """What comes out of a keyed step, and on the side what came too late for it."""

    @property
    def late(self) -> Stream[Any]:
        """
        The elements that came too late; counted if this has no reader.

        Raises:
            PipelineError: if the step does not wait for event time, so that nothing is late.
        """
        if not self._sides:
            raise PipelineError(
                f"step {self._output.step!r} does not wait for event time, so nothing is late for it"
            )
        return self.side(LATE)


class PatternMatches(KeyedResults[T]):
    """What comes out of a pattern: matches, and on the side what began like one and did not become one."""

    @property
    def timed_out(self) -> Stream[Any]:
        """Beginnings, each as a `Match`, whose time was over before they were whole; also counted."""
        return self.side(TIMED_OUT)


def _time_to_live(ttl: Duration | TimeToLive | None) -> TimeToLive | None:
    """What a user passed as `ttl`, the time for which something is kept; None: for ever."""
    if ttl is None or isinstance(ttl, TimeToLive):
        return ttl
    duration_ms("ttl", ttl)
    return TimeToLive(ttl)
