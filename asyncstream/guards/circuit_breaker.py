"""
Circuit breaker: stop calling a service that fails, and try it again after a while.

What is counted, and what follows from it, is the business of a `Breaker`; with a scope, of one that all
processes share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

from asyncstream.errors import CircuitOpen
from asyncstream.guards.breaker import Breaker
from asyncstream.guards.guard import Call, Guard, refuse_beside, usable_as_decorator
from asyncstream.guards.nests import take_place
from asyncstream.guards.shared import SharedLimit
from asyncstream.guards.shared.breaker import SharedBreaker
from asyncstream.guards.shared.exchanging import STORE_AWAY, waits
from asyncstream.validation import Duration, choice, instance, refuse

__all__ = ("CircuitBreaker", "circuit_breaker")

In = TypeVar("In")
Out = TypeVar("Out")


class CircuitBreaker(Guard[In, Out]):
    """
    Keeps calls from a service that fails.

    A call that is cancelled counts for nothing, so a service that hangs opens the breaker only if
    something inside ends its calls with an error: give the client a timeout.

    Args:
        fn: the async function that it wraps.
        failure_ratio, window, min_calls, failures, open_for, probes, on: as of `Breaker`.
        when_open: "wait": calls wait until the service is well again, and the stream pauses behind them;
            "refuse": they fail at once.
        scope: with whom the breaker is shared, in other processes and on other hosts, as `SharedBreaker`.
        breaker: one shared with others, instead of one made of the rest of the arguments, which are those
            of `Breaker`.

    Raises:
        CircuitOpen: when a call is refused.
    """

    counted = ("circuit_opened", "circuit_waited", "circuit_refused")
    together: ClassVar = {"circuit_state": max, STORE_AWAY: max}
    keeps_place = True

    def __init__(
        self,
        fn: Call[In, Out],
        *,
        when_open: Literal["wait", "refuse"] = "wait",
        scope: SharedLimit | None = None,
        breaker: Breaker | None = None,
        failure_ratio: float | None = 0.5,
        window: Duration = 10.0,
        min_calls: int = 10,
        failures: int | None = None,
        open_for: Duration = 10.0,
        probes: int = 1,
        on: Callable[[Exception], bool] | None = None,
    ) -> None:
        super().__init__(fn)
        self.waits_for_place = choice("when_open", when_open, ("wait", "refuse")) == "wait"
        if scope is not None and breaker is not None:
            raise refuse("circuit_breaker", "either scope= or breaker=", (scope, breaker))
        options: dict[str, Any] = {
            "failure_ratio": failure_ratio,
            "window": window,
            "min_calls": min_calls,
            "failures": failures,
            "open_for": open_for,
            "probes": probes,
            "on": on,
        }
        if breaker is None:
            breaker = Breaker(**options) if scope is None else SharedBreaker(scope=scope, **options)
        else:
            refuse_beside("breaker", CircuitBreaker, **options)
        instance("breaker", breaker, Breaker)
        self.breaker = self.shares = breaker
        take_place("breaker", self)

    async def invoke(self, value: In) -> Out:
        breaker = self.breaker
        period = breaker.period if breaker.is_closed else await self._enter()
        try:
            result = await self._call(value)
        except Exception as error:
            breaker.failed(period, self._time(), error)
            raise
        except BaseException:
            breaker.abandoned(period)
            raise
        breaker.succeeded(period, self._time())
        return result

    async def _enter(self) -> int:
        breaker = self.breaker
        if self.waits_for_place:
            return await breaker.enter()
        period = await breaker.enter_at_once()
        if period is not None:
            return period
        breaker.refused += 1
        raise CircuitOpen(breaker.remaining())

    def counters(self) -> dict[str, int]:
        breaker = self.breaker
        return {
            "circuit_state": breaker.state.value,
            "circuit_opened": breaker.opened,
            "circuit_waited": breaker.waited,
            "circuit_refused": breaker.refused,
            **waits(breaker),
        }


circuit_breaker = usable_as_decorator(CircuitBreaker)
