"""
What Spark does otherwise than an asyncio loop, and what it cannot do at all, in the user's words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from asyncstream.async_wait import AsyncWaitOperator, OutputOrder
from asyncstream.errors import PipelineError
from asyncstream.eventtime import NoWatermarks
from asyncstream.operators.base import Operator
from asyncstream.operators.functions import AsyncFunction
from asyncstream.operators.process import KeyedProcessOperator
from asyncstream.operators.timestamps import AdvanceWhenQuiet, AssignEventTime
from asyncstream.plan import Graph, OperatorStep
from asyncstream.runtime.spark.assembly import delay_ms
from asyncstream.runtime.spark.clocks import SHIFT_YEARS, timed_inputs
from asyncstream.runtime.spark.cut import StageKind, cut
from asyncstream.windowing.policies import PolicyWindowOperator

__all__ = ("differences", "not_asked_to", "refuse_unknown", "replays")


def refuse_unknown(graph: Graph, *, streaming: bool, processing_time: bool) -> None:
    """
    Refuse what Spark cannot do.

    Raises:
        PipelineError: naming the step and the reason.
    """
    if not streaming:
        return  # a bounded job has one watermark, at its end
    stages = cut(graph, streaming=True)
    if not any(stage.kind is StageKind.KEYED for stage in stages):
        return  # nobody looks at event time
    for number, stage in enumerate(stages):
        for step in stage.steps:
            operator = step.make()
            if isinstance(operator, AssignEventTime):
                _check_event_time(step.name, operator, first=number == 0)
            elif operator.waits_for_clock and not processing_time:
                raise not_asked_to(step.name)
            elif _has_own_watermark(operator) and any(
                stage.kind is StageKind.KEYED for stage in stages[number + 1 :]
            ):
                raise PipelineError(
                    f"step {step.name!r}: policy windows in event time follow a watermark of their own, and "
                    "a stream on Spark has one for all; no keyed step can follow them"
                )
    names = [step.name for stage in stages for step in stage.steps]
    for timed in timed_inputs(graph):
        delays = {_delay_of(graph, name): name for name in names if name in timed.steps}
        if len(delays) > 1:
            raise PipelineError(
                f"steps {', '.join(map(repr, delays.values()))} wait for different times; a stream on Spark "
                "has one watermark for all that an input is read for, so give them the same delay"
            )


def replays(steps: Iterable[OperatorStep], *, streaming: bool) -> bool:
    """Whether event time moves in a job: in a bounded one, if there is a step that can tell."""
    return not streaming and any(isinstance(step.make(), KeyedProcessOperator) for step in steps)


def _delay_of(graph: Graph, name: str) -> int | None:
    step = graph[name]
    operator = step.make() if isinstance(step, OperatorStep) else None
    return delay_ms(operator.strategy) if isinstance(operator, AssignEventTime) else None


def not_asked_to(step: str) -> PipelineError:
    """The error for a step of a stream that waits for processing time."""
    return PipelineError(
        f"step {step!r} waits for processing time, which a stream on Spark follows only if it is asked to: "
        "on_spark(..., processing_time=True)"
    )


def _check_event_time(step: str, operator: AssignEventTime, *, first: bool) -> None:
    if not first:
        raise PipelineError(
            f"step {step!r} gives elements new timestamps behind a keyed step; a stream on Spark has one "
            "watermark, so event time must be given before the first keyed step"
        )
    if delay_ms(operator.strategy) is None and not isinstance(operator.strategy, NoWatermarks):
        raise PipelineError(
            f"step {step!r}: {operator.strategy} is not possible on Spark, whose watermark is the largest "
            "timestamp less a delay; use BoundedOutOfOrderness or AscendingTimestamps"
        )


def differences(
    graph: Graph,
    *,
    streaming: bool,
    processing_time: bool = False,
    at_once: Mapping[str, int | None] = MappingProxyType({}),
) -> list[str]:
    """
    What the user will find different from the same pipeline embedded, a sentence each.

    Args:
        at_once: by step, among how many tasks rates are divided.
    """
    operators = [(step, step.make()) for step in graph if isinstance(step, OperatorStep)]
    found = [
        text
        for step, operator in operators
        for text in _of_step(step, operator, streaming, at_once.get(step.name))
    ]
    keyed = any(step.is_keyed for step, _ in operators)
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
        found.append("the end of a stream does not close open windows")
        found.append(
            "the number of key groups and of shuffle partitions is fixed when the checkpoint is made"
        )
    if keyed and streaming and processing_time:
        found.append(
            "processing time stands still during a micro-batch; there is one at every trigger, with rows or "
            "without, and availableNow does not end"
        )
    if keyed and not streaming:
        moving = replays((step for step, _ in operators), streaming=streaming)
        found.append(
            "process functions see event time move by each partition's own watermarks, which merge the "
            "elements of several; windows see it move once, at the end of input: nothing is late for them"
            if moving
            else "event time moves once, at the end of input: nothing is late, and all timers fire then"
        )
    return found


def _of_step(step: OperatorStep, operator: Operator, streaming: bool, at_once: int | None) -> Iterator[str]:
    if isinstance(operator, AsyncWaitOperator):
        bounds = "partition and micro-batch" if streaming else "partition"
        settings = operator.settings
        yield (
            f"{step.name}: {settings.concurrency} calls at once in every running task, not in all; likewise "
            "the state of a circuit breaker and what is cached"
        )
        yield (
            f"{step.name}: a rate limit holds in every running task, for Spark does not tell of how many"
            if at_once is None
            else f"{step.name}: a rate limit is divided among {at_once} tasks at once, each has its part"
        )
        if settings.order is not OutputOrder.PER_KEY:
            yield f"{step.name}: order {settings.order.value} holds within a {bounds}"
        yield f"{step.name}: the last slow call holds its whole {bounds}; a timeout bounds that"
        yield f"{step.name}: a task that fails is run again by Spark, with all its calls"
        if isinstance(settings.function, AsyncFunction):
            yield f"{step.name}: close() is not called when Spark ends a worker"
    elif streaming and _has_own_watermark(operator):
        yield f"{step.name}: each key group follows a watermark of its own, from its own elements"
    elif isinstance(operator, AdvanceWhenQuiet):
        yield f"{step.name}: has no effect, since Spark's watermark moves with elements only"
    elif isinstance(operator, AssignEventTime) and step.details.get("idle_after") is not None:
        yield f"{step.name}: idle_after has no effect, since Spark's watermark waits for all inputs"


def _has_own_watermark(operator: Operator) -> bool:
    return isinstance(operator, PolicyWindowOperator) and operator.settings.event_time
