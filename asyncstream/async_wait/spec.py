"""
The spec of an async step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from asyncstream.async_wait.operator import COUNTED, AsyncWaitOperator
from asyncstream.async_wait.settings import AsyncWaitSettings, OutputOrder
from asyncstream.operators.failures import routed_to
from asyncstream.operators.fingerprint import fingerprint
from asyncstream.operators.functions import AsyncFunction, counters_of
from asyncstream.operators.spec import Calls, JournalUse, KeyBy, Lend, Spec
from asyncstream.state.schema import Schema

__all__ = ("AsyncWaitSpec",)


@dataclass(frozen=True)
class AsyncWaitSpec(Spec):
    """
    Calls an async function on each element.

    Attributes:
        settings: how to run the calls.
    """

    settings: AsyncWaitSettings

    operator = AsyncWaitOperator
    peaks = ("most_running",)

    def build(self) -> AsyncWaitOperator:
        return AsyncWaitOperator(self.settings)

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return (self.settings.key_by,)

    @property
    def required(self) -> tuple[str, ...]:
        timed_out = ("timed_out",) if self.settings.on_timeout == "route" else ()
        return routed_to(self.settings.on_error) + timed_out

    def keeps_origins(self, tag: str | None) -> bool:
        return True

    @property
    def asks_origins(self) -> bool:
        return self.settings.uses_key

    @property
    def needs_origins(self) -> bool:
        settings = self.settings
        return settings.effect is True or (bool(settings.journal) and settings.identity is None)

    @property
    def journal(self) -> JournalUse | None:
        settings = self.settings
        if settings.journal is False or (settings.journal is None and settings.replay == "all"):
            return None
        return JournalUse(
            fingerprint(settings.function),
            waits=settings.journal == "fsync",
            by_default=settings.journal is None,
            by_position=settings.identity is None,
        )

    @property
    def schema(self) -> Schema:
        return Schema(settings={"order": self.settings.order.value})  # elements wait in the same form in each

    @property
    def counters(self) -> tuple[str, ...]:
        function = self.settings.function
        return (*COUNTED, *(counters_of(function) if isinstance(function, AsyncFunction) else ()))

    @property
    def calls(self) -> Calls:
        settings = self.settings
        return Calls(
            settings.concurrency,
            settings.order.value,
            settings.order is OutputOrder.PER_KEY,
            isinstance(settings.function, AsyncFunction),
            settings.function,
        )

    def with_calls(self, lend: Lend | None, held: int) -> AsyncWaitSpec:
        settings = self.settings
        if settings.buffer is None:
            settings = replace(settings, buffer=max(settings.buffer_size, held))
        if lend is not None and isinstance(settings.function, AsyncFunction):
            settings = replace(settings, function=lend(settings.function))
        return AsyncWaitSpec(settings)
