"""
The specs of steps that run a function of the user's for each key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncstream.operators.failures import OnError, failure_counters, routed_to
from asyncstream.operators.process import KeyedFunction, KeyedProcessFunction, KeyedProcessOperator
from asyncstream.operators.spec import ClockUse, KeyBy, Spec
from asyncstream.state import StateDescriptor
from asyncstream.state.schema import Schema, described
from asyncstream.validation import refuse, text

__all__ = ("KeyedFunctionSpec", "ProcessSpec", "check_sides", "process_schema")


def check_sides(function: object) -> None:
    """Refuse a process function whose `sides` are no names: of a text each letter would be one."""
    sides = getattr(function, "sides", None)
    if sides is not None and not isinstance(sides, tuple | list):
        raise refuse(f"sides of {type(function).__name__}", "a tuple of names", sides, 'e.g. ("late",)')
    for tag in sides or ():
        text(f"sides of {type(function).__name__}", tag)


@dataclass(frozen=True)
class KeyedFunctionSpec(Spec):
    """Base of specs for a `KeyedFunction` of this step alone, whatever its inputs are."""

    function: KeyedFunction
    on_error: OnError

    clock = ClockUse.MAY_EMIT
    has_user_timers = True

    def __post_init__(self) -> None:
        check_sides(self.function)

    @property
    def required(self) -> tuple[str, ...]:
        return (*routed_to(self.on_error), *(self.function.sides or ()))

    @property
    def owns(self) -> object:
        return self.function

    @property
    def schema(self) -> Schema:
        return process_schema(self.function)

    @property
    def counters(self) -> tuple[str, ...]:
        return failure_counters(self.on_error)


@dataclass(frozen=True)
class ProcessSpec(KeyedFunctionSpec):
    """Runs the user's own state machine for each key."""

    function: KeyedProcessFunction[Any, Any]
    key_by: KeyBy

    operator = KeyedProcessOperator
    frames = 8  # of a watermark

    def build(self) -> KeyedProcessOperator:
        return KeyedProcessOperator(self.key_by, self.function, self.on_error)

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return (self.key_by,)


def process_schema(function: KeyedFunction) -> Schema:
    """
    The schema of what `function` remembers, as far as it can be told before it runs.

    That are the descriptors among its attributes and its class's. State that it asks for otherwise is
    compared when it does: one of another kind is refused then.
    """
    held = [_descriptors_of(part) for part in (*reversed(type(function).__mro__), function)]
    found = {state.name: state for states in held for state in states}
    return Schema(
        parts={name: {"type": type(state).__name__} for name, state in found.items()},
        settings={
            "function": type(function).__name__,
            "ttl": {name: described(state.ttl) for name, state in found.items() if state.ttl is not None},
        },
    )


def _descriptors_of(holder: object) -> list[StateDescriptor[Any]]:
    return [part for part in getattr(holder, "__dict__", {}).values() if isinstance(part, StateDescriptor)]
