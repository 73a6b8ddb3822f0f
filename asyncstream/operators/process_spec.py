"""
The spec of a step that runs a `KeyedProcessFunction`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncstream.operators.failures import OnError, failure_counters, routed_to
from asyncstream.operators.process import KeyedProcessFunction, KeyedProcessOperator, process_schema
from asyncstream.operators.spec import ClockUse, KeyBy, Spec
from asyncstream.state.schema import Schema

__all__ = ("ProcessSpec",)


@dataclass(frozen=True)
class ProcessSpec(Spec):
    """
    Runs the user's own state machine for each key.

    Attributes:
        key_by: gives the key of an element.
        function: the user's code, of this step alone.
        on_error: what becomes of an element on which it fails.
    """

    key_by: KeyBy
    function: KeyedProcessFunction[Any, Any]
    on_error: OnError

    def build(self) -> KeyedProcessOperator:
        return KeyedProcessOperator(self.key_by, self.function, self.on_error)

    @property
    def operator(self) -> type[KeyedProcessOperator]:
        return KeyedProcessOperator

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return (self.key_by,)

    @property
    def required(self) -> tuple[str, ...]:
        return routed_to(self.on_error) + (self.function.sides or ())

    @property
    def owns(self) -> object:
        return self.function

    @property
    def frames(self) -> int:
        return 3

    @property
    def schema(self) -> Schema:
        return process_schema(self.function)

    @property
    def counters(self) -> tuple[str, ...]:
        return failure_counters(self.on_error)

    @property
    def clock(self) -> ClockUse:
        return ClockUse.MAY_EMIT

    @property
    def has_user_timers(self) -> bool:
        return True
