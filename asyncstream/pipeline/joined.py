"""
Two keyed streams, waiting to be told which of their elements belong together.

    orders.key_by("id").join(payments.key_by("order"), how="left").within(0, timedelta(hours=1))
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeAlias, TypeVar

from asyncstream.errors import PipelineError
from asyncstream.joins import (
    LATE_LEFT,
    LATE_RIGHT,
    AsOfSpec,
    CoGrouped,
    How,
    IntervalJoinSpec,
    Made,
    WindowJoinSpec,
)
from asyncstream.operators.spec import KeyBy
from asyncstream.pipeline.keyed import shown_plan
from asyncstream.pipeline.missing_methods import Unfinished
from asyncstream.pipeline.per_key import KeyedResults
from asyncstream.pipeline.stream import Stream
from asyncstream.plan import Output
from asyncstream.shown import Shown
from asyncstream.validation import Duration, choice, duration_ms, flag, signed_ms
from asyncstream.windowing import LATE, Evictor, Trigger, WindowAssigner, WindowPlan

__all__ = ("AsOf", "CoGroup", "Inclusive", "Join", "Joined", "TwoKeyedStreams", "as_of", "bounds_ms")

T = TypeVar("T")
L = TypeVar("L")
R = TypeVar("R")

Inclusive: TypeAlias = Literal["both", "before", "after", "neither"]
"""Which of two bounds are inside."""


class Joined(Stream[T]):
    """What comes out of a join: its results, and on the side what came too late."""

    @property
    def late_left(self) -> Stream[Any]:
        """The elements of the left stream that came too late; counted if nothing reads this."""
        return Stream(self._graph, Output(self._output.step, LATE_LEFT))

    @property
    def late_right(self) -> Stream[Any]:
        """The elements of the right stream that came too late; counted if nothing reads this."""
        return Stream(self._graph, Output(self._output.step, LATE_RIGHT))


class AsOf(KeyedResults[tuple[L, R | None]], Generic[L, R]):
    """What comes out of a temporal join."""

    @property
    def late(self) -> Stream[L]:
        """
        The elements that came too late to know what was valid; counted if nothing reads this.

        Raises:
            PipelineError: of a join with `latest=True`, for which nothing is late.
        """
        return super().late


class TwoKeyedStreams(Shown):
    """Two keyed streams."""

    def __init__(self, what: str, left: Any, right: Any) -> None:
        left._check_together(what, right)
        keys = []
        for side, stream in (("first", left), ("second", right)):
            if stream._key() is None:
                raise PipelineError(
                    f"{what}: expected keyed streams, the {side} has no key; put .key_by(...) before"
                )
            keys.append(stream._key())
        self._left: Stream[Any] = left
        self._outputs = (left._output, right._output)
        self._key_of: tuple[KeyBy, KeyBy] = (keys[0], keys[1])

    def _windows(
        self,
        kind: str,
        made: Made,
        assigner: WindowAssigner,
        trigger: Trigger | None,
        evictor: Evictor | None,
        allowed_lateness: Duration,
        name: str | None,
    ) -> Joined[Any]:
        lateness_ms = duration_ms("allowed_lateness", allowed_lateness, zero=True)
        plan = WindowPlan(assigner, trigger, evictor, lateness_ms)
        details = {"how": made if kind == "join" else None} | shown_plan(plan)
        spec = WindowJoinSpec(self._key_of, plan, made)
        return Joined(self._left._graph, self._left._step(kind, name, spec, details, self._outputs))


class Join(Unfinished, TwoKeyedStreams, Generic[L, R]):
    """Two keyed streams whose elements are to be paired."""

    _comes_next = "say first which elements belong together: .within(before, after) or .window(...)"

    def __init__(self, left: Any, right: Any, how: How) -> None:
        super().__init__("join", left, right)
        self._how: How = choice("how", how, ("inner", "left", "right", "full"))

    def within(
        self, before: Duration, after: Duration, *, inclusive: Inclusive = "both", name: str | None = None
    ) -> Joined[tuple[L, R]]:
        """
        Pairs whose right element is from `before` its left one to `after` it: an interval join.

        A pair comes when its second element does, and carries the later of their timestamps. An element is
        kept until the watermark says that nothing can match it any more. One without a partner, if `how` asks
        for it, is emitted then, and carries that time, so that it is not late for what follows.

        Args:
            before: how much earlier than the left element the right one may be: a `timedelta` or seconds.
                Negative: it must be later by at least this.
            after: how much later it may be. Negative: it must be earlier by at least this.
            inclusive: which of the two bounds are inside.

        Raises:
            PipelineError: if the interval ends before it begins: `before` and `after` together are negative.
        """
        lower_ms, upper_ms = bounds_ms(before, after, inclusive)
        spec = IntervalJoinSpec(self._key_of, lower_ms, upper_ms, self._how)
        details: dict[str, object] = {"how": self._how, "before": before, "after": after}
        if inclusive != "both":
            details["inclusive"] = inclusive
        output = self._left._step("join", name, spec, details, self._outputs)
        return Joined(self._left._graph, output)

    def window(
        self,
        assigner: WindowAssigner,
        *,
        trigger: Trigger | None = None,
        evictor: Evictor | None = None,
        allowed_lateness: Duration = 0,
        name: str | None = None,
    ) -> Joined[tuple[L, R]]:
        """
        Pairs of all elements that are in the same window; they carry its last millisecond as timestamp.

        Elements that `how` asks for without a partner are those in whose window the other side has none.
        Sessions are those of both streams together. A late element within the allowed lateness emits all
        pairs of its window again.

        Args:
            assigner: which windows: `TumblingWindows(60)`, `SessionWindows(1800)`, …
            trigger: when a window fires, if not (only) at its end; it sees the elements of both streams.
            evictor: which elements to throw out, of both streams together. Functions of the assigner, the
                trigger and the evictor are given pairs ("left" or "right", element).
            allowed_lateness: how long each window is kept after its end; a `timedelta` or seconds.
        """
        return self._windows("join", self._how, assigner, trigger, evictor, allowed_lateness, name)


class CoGroup(Unfinished, TwoKeyedStreams, Generic[L, R]):
    """Two keyed streams whose elements are to be grouped by windows."""

    _comes_next = "say first which elements belong together: .window(...)"

    def __init__(self, left: Any, right: Any) -> None:
        super().__init__("co_group", left, right)

    def window(
        self,
        assigner: WindowAssigner,
        *,
        trigger: Trigger | None = None,
        evictor: Evictor | None = None,
        allowed_lateness: Duration = 0,
        name: str | None = None,
    ) -> Joined[CoGrouped[L, R]]:
        """
        A `CoGrouped` for each firing of a window, also of one in which a stream has nothing.

        Args:
            assigner: as for `Join.window`, and so are the others.
        """
        return self._windows("co_group", "groups", assigner, trigger, evictor, allowed_lateness, name)


def as_of(events: Stream[L] | Any, versions: Stream[R], latest: bool, name: str | None) -> AsOf[L, R]:
    """What `events.as_of(versions)` gives."""
    two = TwoKeyedStreams("as_of", events, versions)
    spec = AsOfSpec(two._key_of, flag("latest", latest))
    details = {"latest": True} if latest else {}
    output = events._step("as_of", name, spec, details, two._outputs)
    return AsOf(events._graph, output, () if latest else (LATE,))


def bounds_ms(before: Duration, after: Duration, inclusive: Inclusive) -> tuple[int, int]:
    """
    What the right element's time may be less the left one's: least and most, both inclusive.

    Raises:
        PipelineError: if the bounds are the wrong way round.
    """
    lower_ms, upper_ms = -signed_ms("before", before), signed_ms("after", after)
    choice("inclusive", inclusive, ("both", "before", "after", "neither"))
    if lower_ms > upper_ms:
        raise PipelineError(
            f"within: the interval begins {lower_ms} ms and ends {upper_ms} ms after the left element; "
            "before= and after= together must not be negative"
        )
    return lower_ms + (inclusive in ("after", "neither")), upper_ms - (inclusive in ("before", "neither"))
