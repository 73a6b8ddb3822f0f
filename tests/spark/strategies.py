"""
Strategies for pipelines and micro-batches.

What is drawn is only what has one answer: a stream whose elements come in an order that nobody promises gets
steps behind it that do not look at order. An `Account` keeps track of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from asyncstream import (
    PipelineError,
)
from asyncstream.windowing import (
    AfterWatermark,
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    CumulativeWindows,
    DeltaEvictor,
    DeltaTrigger,
    DynamicSessionWindows,
    Evictor,
    GlobalWindows,
    PurgingTrigger,
    SessionWindows,
    SlidingWindows,
    TimeEvictor,
    Trigger,
    TumblingWindows,
    WindowAssigner,
    WindowPlan,
)
from tests.spark.generated_pipelines import Batches, Drawn, Rows
from tests.spark.newer_steps import ONE_INPUT, ORDERED, TWO_INPUTS, Newer
from tests.spark.steps import KEYS, Counted, Plain, Policy, Processed, Step, Windowed, difference, gap_of, ms

__all__ = ("Account", "keyed_steps", "micro_batches", "pipelines")


@dataclass
class Account:
    """
    What is promised of the stream so far.

    Attributes:
        order: "all": the elements have one order; "key": those of a key have; None: neither.
        streaming: several watermarks.
        timed: elements have timestamps that are the same in each run.
        behind: a keyed step has been.
        timely: it is certain which elements come before a watermark.
        clocked: elements have timestamps from the clock.
        quick: no call has taken any time.
    """

    streaming: bool
    order: str | None = "all"
    timed: bool = True
    behind: bool = False
    timely: bool = True
    clocked: bool = False
    quick: bool = True

    def follow(self, step: Plain) -> None:
        """Behind a plain step."""
        if step.kind.startswith("async"):
            if step.order in ("unordered", "event_time"):
                self.order = None
            elif step.order == "per_key" and self.order is not None:
                self.order = "key"
            if self.streaming and self.behind and step.order in ("unordered", "per_key"):
                self.timely = False  # what follows a watermark may go ahead of it
            if step.waits == "sleeps" or step.on_timeout is not None:
                self.quick = False
            if step.joins:
                self.order = None


@st.composite
def plain_steps(draw: st.DrawFn, account: Account, *, per_key: bool, slow: bool) -> tuple[Plain, ...]:
    steps = []
    for kind in draw(st.lists(st.sampled_from(["map", "filter", "flat_map", *["async"] * 3]), max_size=2)):
        step = Plain(kind)
        if kind == "async":
            orders = ["ordered", "ordered", "unordered", "event_time"] + ["per_key"] * 2 * per_key
            step = Plain(
                draw(st.sampled_from(["async_map", "async_map", "async_flat_map"])),
                draw(st.sampled_from(orders)),
                draw(st.sampled_from(["never", "ticks", *["sleeps"] * slow])),
                draw(st.sampled_from([None, None, "skip", "route", "back"])),
                draw(st.sampled_from([None, None, None, *["skip", "route", "back", "stand_in"] * slow])),
                draw(st.integers(1, 5)),
            )
        account.follow(step)
        steps.append(step)
    return tuple(steps)


SIZES = st.sampled_from([5, 10, 10, 15, 20])
EVERY = st.sampled_from([1, 2, 3])
WHEN: st.SearchStrategy[Any] = st.sampled_from(["before", "after"])


@st.composite
def assigners(draw: st.DrawFn, ordered: bool, untimed: bool) -> WindowAssigner:
    kinds = ["tumbling", "sliding", "cumulative"] + ["session", "dynamic", "global"] * ordered
    kind = "global" if untimed else draw(st.sampled_from(kinds))
    size = draw(SIZES)
    offset = ms(draw(st.sampled_from([0, 0, 3])))
    if kind == "tumbling":
        return TumblingWindows(ms(size), offset=offset)
    if kind == "sliding":
        return SlidingWindows(ms(size), ms(draw(SIZES)), offset=offset)
    if kind == "cumulative":
        return CumulativeWindows(ms(size), ms(5), offset=offset)
    if kind == "session":
        return SessionWindows(ms(size))
    if kind == "dynamic":
        return DynamicSessionWindows(gap_of)
    return GlobalWindows(fire_at_end=draw(st.booleans()))


@st.composite
def triggers(draw: st.DrawFn, depth: int = 0) -> Trigger:
    kinds = ["count", "continuous", "delta"] + ["purging", "watermark"] * (depth < 2)
    kind = draw(st.sampled_from(kinds))
    if kind == "count":
        return CountTrigger(draw(EVERY))
    if kind == "continuous":
        return ContinuousEventTimeTrigger(ms(draw(SIZES)))
    if kind == "delta":
        return DeltaTrigger(difference, draw(st.integers(0, 8)))
    if kind == "purging":
        return PurgingTrigger(draw(triggers(depth + 1)))
    part = st.none() | triggers(depth + 1)
    return AfterWatermark(early=draw(part), late=draw(part))


@st.composite
def evictors(draw: st.DrawFn) -> Evictor:
    kind = draw(st.sampled_from(["count", "time", "delta"]))
    if kind == "count":
        return CountEvictor(draw(st.integers(0, 3)), draw(WHEN))
    if kind == "time":
        return TimeEvictor(ms(draw(SIZES)), draw(WHEN))
    return DeltaEvictor(difference, draw(st.integers(1, 9)), draw(WHEN))


@st.composite
def windowed(draw: st.DrawFn, keys: str, ordered: bool, account: Account) -> Windowed:
    assigner = draw(assigners(ordered, not account.timed))
    trigger = draw(st.none() | triggers()) if ordered else None
    evictor = draw(st.none() | st.none() | evictors()) if ordered else None
    lateness = draw(st.sampled_from([0, 0, 5, 12, 40]))
    functions = ["sums", "count", "collect"] if ordered or not (lateness and account.streaming) else ["count"]
    function = draw(st.sampled_from(functions + ["places", "reduce", "process"] * ordered))
    if trigger is not None or evictor is not None:
        try:
            WindowPlan(assigner, trigger, evictor, lateness)
        except PipelineError:  # triggers that cannot merge, with sessions
            trigger = None
    if trigger is None and isinstance(assigner, GlobalWindows):
        assigner = GlobalWindows(fire_at_end=True)
    step = Windowed(
        keys,
        assigner,
        trigger,
        evictor,
        lateness,
        function,
        draw(st.booleans()),
        ordered,
        not account.behind,
    )
    account.timed = account.timed and not isinstance(assigner, GlobalWindows)
    return step


@st.composite
def newer_steps(draw: st.DrawFn, account: Account) -> Newer:
    keys = draw(st.sampled_from(["key", "key", "coarse"]))
    ordered = account.order == "all" or (account.order == "key" and keys == "key")
    is_certain = account.timed and account.timely
    untimed = ("dead_letters", "union_of_three")
    ways = [kind for kind in (*ONE_INPUT, *TWO_INPUTS) if is_certain or kind in untimed]
    of_time = ("as_of", "deduplicate_by_time", "pattern")
    kinds = ways + [kind for kind in ORDERED if ordered and (is_certain or kind not in of_time)]
    kind = draw(st.sampled_from(kinds))
    account.order = "key" if kind in ORDERED else None
    account.behind = True
    how = draw(st.sampled_from(["inner", "left", "right", "full"]))
    number = draw(st.integers(1, 4))
    return Newer(kind, keys, how, draw(SIZES), number, draw(st.booleans()), kind in ORDERED)


@st.composite
def keyed_steps(draw: st.DrawFn, account: Account) -> Step | Newer:
    if draw(st.booleans()):
        return draw(newer_steps(account))
    keys = draw(st.sampled_from(["key", "key", "coarse", "none"] + ["coarse"] * account.behind))
    ordered = account.order == "all" or (account.order == "key" and keys == "key")
    kinds = []
    if account.timed and account.timely:
        kinds += ["windowed"] * 4 + ["processed"] * 2
    if ordered:
        kinds += ["counted", "policy"]
        if account.timely and not account.timed and not account.clocked:
            kinds.append("windowed")
    if not kinds:  # nothing but a filter is certain here
        return Plain("filter")
    kind = draw(st.sampled_from(kinds))
    if kind != "windowed" and kind != "policy" and keys == "none":
        keys, ordered = "coarse", account.order == "all"
        if kind == "counted" and not ordered:
            keys, ordered = "key", True
    step: Step
    if kind == "windowed":
        step = draw(windowed(keys, ordered, account))
    elif kind == "counted":
        function = draw(st.sampled_from(["sums", "places", "collect", "reduce"]))
        step = Counted(
            keys, draw(st.integers(1, 4)), draw(st.none() | st.integers(1, 4)), function, not account.behind
        )
        account.timed = False
    elif kind == "policy":
        step = draw(policies(keys, account))
        account.timed = False
    else:
        step = Processed(
            keys,
            draw(SIZES),
            draw(st.sampled_from([0, 0, 1])),
            draw(st.booleans()),
            ordered and draw(st.booleans()),
            draw(st.booleans()),
            ordered,
            not account.behind,
        )
    account.order = "key" if ordered else None
    account.behind = True
    return step


@st.composite
def policies(draw: st.DrawFn, keys: str, account: Account) -> Policy:
    counts = st.integers(1, 4)
    account.clocked = True
    if account.streaming or not (account.timed and account.quick) or draw(st.booleans()):
        return Policy(keys, "processing", draw(counts), draw(st.none() | counts))
    extents = counts | SIZES.map(ms)
    return Policy(keys, "event", draw(extents), draw(st.none() | extents))


@st.composite
def pipelines(draw: st.DrawFn, *, streaming: bool, slow: bool = True) -> Drawn:
    """
    Args:
        slow: with calls that take long; where time is virtual, they do not.
    """
    account = Account(streaming)
    sources = draw(st.sampled_from([1, 1, 1, 2]))
    before = draw(plain_steps(account, per_key=False, slow=slow))
    if sources > 1 and any(step.kind.startswith("async") for step in before):
        account.order = None  # calls for both are under way together
    after: list[tuple[Step | Newer, bool]] = []
    for _ in range(draw(st.sampled_from([0, 1, 1, 2, 2]))):
        after += [(step, True) for step in draw(plain_steps(account, per_key=True, slow=slow))]
        after.append((draw(keyed_steps(account)), draw(st.booleans())))
    after += [(step, True) for step in draw(plain_steps(account, per_key=True, slow=slow))]
    return Drawn(
        before,
        tuple(after),
        account.order is not None and account.behind,
        draw(st.sampled_from([0, 7, 20])),
        sources,
        draw(st.booleans()),
        draw(st.booleans()),
    )


@st.composite
def micro_batches(draw: st.DrawFn) -> Batches:
    """Micro-batches of few keys: behind each other, at boundaries, empty, in partitions."""
    base = draw(st.sampled_from([0, -30, 1_700_000_000_000]))
    keys = draw(st.lists(st.integers(0, len(KEYS) - 1), min_size=1, max_size=5))
    number = 0
    batches: Batches = []
    for size in draw(st.lists(st.integers(0, 3), min_size=1, max_size=5)):
        base += draw(st.sampled_from([0, 10, 17, 40]))
        partitions: list[Rows] = []
        for _ in range(size):
            rows: Rows = []
            for lag in draw(st.lists(st.integers(-20, 25), max_size=6)):
                number += 1
                key = draw(st.sampled_from(keys))
                rows.append({"k": key, "ts": base - lag, "n": number})
            partitions.append(rows)
        batches.append(partitions)
    return batches
