"""
What Spark does otherwise than an asyncio loop, and what it cannot do at all, in the user's words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from asyncstream.errors import PipelineError
from asyncstream.eventtime import IngestionTime, NoWatermarks, WatermarkStrategy
from asyncstream.guards.rate_limit import divides_rate
from asyncstream.operators.spec import ClockUse, Spec
from asyncstream.plan import Graph, OperatorStep
from asyncstream.runtime.spark.clocks import SHIFT_YEARS, delay_ms, timed_inputs
from asyncstream.runtime.spark.stages import StageKind, stages_of

__all__ = ("differences", "not_asked_to", "refuse_unknown", "replays")


def refuse_unknown(graph: Graph, *, streaming: bool, processing_time: bool) -> None:
    """Refuse what Spark cannot do; raises `PipelineError` naming the step and the reason."""
    for step in graph:
        if isinstance(step, OperatorStep):
            _check_step(step)
    stages = stages_of(graph, streaming=streaming)
    for stage in stages[1:]:
        for step in stage.steps:
            if step.spec.needs_origins:
                raise PipelineError(
                    f"step {step.name!r}: effect=True goes by the rows of a task, and this is behind a step "
                    "that brings keys together; put it before, or say what tells its elements from each "
                    'other: effect="id", or a function of the element'
                )
    keyed = [number for number, stage in enumerate(stages) if stage.kind is StageKind.KEYED]
    if keyed:  # of a stream: something looks at event time
        for number, stage in enumerate(stages):
            for step in stage.steps:
                _check_time(step, number == 0, number < keyed[-1], processing_time)
        _check_delays(graph)


def _check_step(step: OperatorStep) -> None:
    if step.spec.needs_loop is not None:
        raise PipelineError(
            f"step {step.name!r} {step.spec.needs_loop}, which takes an event loop that lasts as long as "
            "the job; a task on Spark has none: run this embedded, look up in a stream (as_table), or call "
            "for each element (async_map)"
        )
    for one in step.inputs if step.is_keyed else ():
        if one.key_by is None and not step.spec.overhears:
            raise PipelineError(
                f"step {step.name!r} brings keys together and reads {str(one.output)!r} without a key, so "
                "every task needs all of that; on Spark an element reaches one task: run this embedded, or "
                "look up in a stream by a key (as_table)"
            )
    if step.spec.event_time is not None and isinstance(step.spec.event_time.strategy, IngestionTime):
        raise PipelineError(
            f"step {step.name!r}: ingestion time is not possible on Spark, where a task may run again, at "
            "another time; give the DataFrame a column of current_timestamp(), which is one for a "
            "micro-batch, and read that: event_time(column, AscendingTimestamps())"
        )


def _check_time(step: OperatorStep, is_first: bool, is_keyed_behind: bool, processing_time: bool) -> None:
    """
    Of a step in a stream.

    Args:
        is_first: it is in the first stage.
        is_keyed_behind: a later stage is keyed.
    """
    spec = step.spec
    if spec.event_time is not None:
        _check_event_time(step.name, spec.event_time.strategy, first=is_first)
    elif spec.clock is ClockUse.WAITS and not processing_time:
        raise not_asked_to(step.name)
    elif spec.has_own_watermark and is_keyed_behind:
        raise PipelineError(
            f"step {step.name!r}: policy windows in event time follow a watermark of their own, and "
            "a stream on Spark has one for all; no keyed step can follow them"
        )


def _check_delays(graph: Graph) -> None:
    steps = [step for step in graph if isinstance(step, OperatorStep)]
    for timed in timed_inputs(graph):
        given = {step.name: step.spec.event_time for step in steps if step.name in timed.steps}
        delays = {delay_ms(how.strategy): name for name, how in given.items() if how is not None}
        if len(delays) > 1:
            raise PipelineError(
                f"steps {', '.join(map(repr, delays.values()))} wait for different times; a stream on Spark "
                "has one watermark for all that an input is read for, so give them the same delay"
            )


def replays(steps: Iterable[OperatorStep], *, streaming: bool) -> bool:
    """Whether event time moves in a job: in a bounded one, if there is a step that can tell."""
    return not streaming and any(step.spec.has_user_timers for step in steps)


def not_asked_to(step: str) -> PipelineError:
    """The error for a step of a stream that waits for processing time."""
    return PipelineError(
        f"step {step!r} waits for processing time, which a stream on Spark follows only if it is asked to: "
        "on_spark(..., processing_time=True)"
    )


def _check_event_time(step: str, strategy: WatermarkStrategy, *, first: bool) -> None:
    if not first:
        raise PipelineError(
            f"step {step!r} gives elements new timestamps behind a keyed step; a stream on Spark has one "
            "watermark, so event time must be given before the first keyed step"
        )
    if delay_ms(strategy) is None and not isinstance(strategy, NoWatermarks):
        raise PipelineError(
            f"step {step!r}: {strategy} is not possible on Spark, whose watermark is the largest "
            "timestamp less a delay; use BoundedOutOfOrderness or AscendingTimestamps"
        )


def differences(
    graph: Graph, *, streaming: bool, processing_time: bool, at_once: Mapping[str, int | None]
) -> list[str]:
    """
    What the user will find different from the same pipeline embedded, a sentence each.

    Args:
        at_once: by step, among how many tasks rates are divided.
    """
    steps = [step for step in graph if isinstance(step, OperatorStep)]
    found = [
        text for step in steps for text in _of_step(step.name, step.spec, streaming, at_once.get(step.name))
    ]
    keyed = any(step.is_keyed for step in steps)
    if keyed:
        found.append("there is no order of arrival across partitions; within a key elements keep theirs")
    if keyed and streaming:
        found.append(
            "watermarks move and timers fire between micro-batches only; an input's watermark follows its "
            "fastest partition, and all keyed steps the slowest input"
        )
        found.append(
            f"Spark knows no time before 1970: the watermark that it shows is {SHIFT_YEARS} years later"
        )
        found.append(
            "a query has one watermark, and this is it: a step of Spark's own that follows another, such as "
            "a window behind withWatermark, goes into a query of its own, which reads what this has written"
        )
        if sum(bool(timed.steps) for timed in timed_inputs(graph)) > 1:
            found.append(
                "a query that is started again has forgotten how far each of several inputs had come: its "
                "watermark stays where it was until all of them have brought elements once more"
            )
        found.append(
            "processing time, by which state outlives its time to live, stands still during a micro-batch, "
            "and is the same if that is run again"
        )
        found.append("the end of a stream does not close open windows")
        found.append(
            "a query keeps the key groups and shuffle partitions that it began with: plan.regroup and "
            "plan.rescale divide its state anew"
        )
    if keyed and streaming and processing_time:
        found.append(
            "the first micro-batch of a query, also of one that is started again, waits for rows, and what "
            "is due by the clock waits with it; from then on there is one at every trigger, with rows or "
            "without, and availableNow does not end"
        )
    if keyed and not streaming:
        moving = replays(steps, streaming=streaming)
        found.append(
            "process functions see event time move by each partition's own watermarks, which merge the "
            "elements of several; windows see it move once, at the end of input: nothing is late for them"
            if moving
            else "event time moves once, at the end of input: nothing is late, and all timers fire then"
        )
    return found


def _of_step(name: str, spec: Spec, streaming: bool, at_once: int | None) -> Iterator[str]:
    if spec.calls is not None:
        bounds = "partition and micro-batch" if streaming else "partition"
        yield (
            f"{name}: {spec.calls.concurrency} calls at once in every running task, not in all; likewise "
            "the state of a circuit breaker and what is cached"
        )
        if divides_rate(spec.calls.function):
            yield (
                f"{name}: a rate limit holds in every running task, for Spark does not tell of how many; "
                "one with scope= is the same for all"
                if at_once is None
                else f"{name}: a rate limit is divided among {at_once} tasks at once, each has its part, "
                "which a worker that takes over from another has anew; one with scope= is the same for all"
            )
        if not spec.calls.is_per_key:
            yield f"{name}: order {spec.calls.order} holds within a {bounds}"
        yield f"{name}: the last slow call holds its whole {bounds}; a timeout bounds that"
        yield f"{name}: a task that fails is run again by Spark, with all its calls"
        if spec.calls.is_opened:
            yield f"{name}: close() is not called when Spark ends a worker"
    elif spec.overhears:
        yield (
            f"{name}: process_broadcast runs in every key group, where apply_to_keyed_state visits the keys "
            "of that group; what else it emits is taken from one group, and must be the same in all, as what "
            "it writes; of what comes together, what is for all keys comes first"
        )
    elif streaming and spec.has_own_watermark:
        yield f"{name}: each key group follows a watermark of its own, from its own elements"
    elif spec.prolongs_event_time:
        yield f"{name}: has no effect, since Spark's watermark moves with elements only"
    elif spec.event_time is not None and spec.event_time.idle_after_ms is not None:
        yield f"{name}: idle_after has no effect, since Spark's watermark waits for all inputs"
