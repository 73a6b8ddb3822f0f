"""A retry neither hides the error that ends it, nor tries again what only a change of the code can mend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from asyncstream.errors import RetriesExhausted
from asyncstream.guards import Breaker, adaptive_concurrency, circuit_breaker, retry
from asyncstream.guards.breaker import CircuitState
from asyncstream.guards.outcomes import PROGRAMMING_ERRORS
from asyncstream.operators.failures import attempts_of
from tests.guards.services import Flaky

pytestmark = pytest.mark.usefixtures("virtual_time")


@dataclass(frozen=True)
class Frozen(Exception):
    code: int
    retryable: bool


@dataclass(frozen=True, slots=True)
class Slotted(Exception):
    code: int
    retryable: bool


class Fixed(Exception):
    """Takes no attributes, and is none of its own."""

    def __init__(self, code: int, retryable: bool) -> None:
        super().__init__(code)
        self.__dict__["retryable"] = retryable

    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError("no")


class Hiding(Exception):
    """Fails at whatever is asked of it."""

    def __init__(self, code: int, retryable: bool) -> None:
        super().__init__(code)

    @property
    def retryable(self) -> bool:
        raise RuntimeError("no")

    response = headers = retry_after = status = retryable

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


class Fields(dict[str, Any]):
    """Has no attributes but its keys, and says so by a KeyError."""

    __getattr__ = dict.__getitem__


@pytest.mark.parametrize("around", [retry, lambda fn, **options: adaptive_concurrency(retry(fn, **options))])
async def test_a_result_of_any_kind_may_be_refused(around: Any) -> None:
    answers = iter([Fields(ready=False), Fields(ready=True)])

    async def ask(value: int) -> Fields:
        return next(answers)

    assert (await around(ask, on_result=lambda answer: not answer.ready)(1)).ready


@pytest.mark.parametrize("kind", [Frozen, Slotted, Fixed])
async def test_error_that_takes_no_attributes_comes_out_as_it_is(
    kind: Callable[[int, bool], Exception],
) -> None:
    last = kind(404, False)
    errors = iter([kind(500, True), last])

    async def fails(value: int) -> None:
        raise next(errors)

    with pytest.raises(type(last)) as caught:
        await retry(fails, attempts=5)(1)
    assert caught.value is last
    assert attempts_of(last) == 2


async def test_error_that_hides_everything_is_retried_and_comes_out_as_it_is() -> None:
    errors = iter([Hiding(1, True), Hiding(1, True), KeyError("last")])

    async def fails(value: int) -> None:
        raise next(errors)

    with pytest.raises(KeyError):
        await retry(fails, attempts=5, on=Hiding)(1)
    error = Hiding(1, True)
    verdicts = iter([True, False])

    async def fails_so(value: int) -> None:
        raise error

    with pytest.raises(Hiding) as caught:
        await retry(fails_so, on=lambda one: next(verdicts))(1)
    assert caught.value is error
    assert attempts_of(error) == 1


@pytest.mark.parametrize("theirs", [None, "many", 2.5])
def test_attempts_that_an_error_tells_of_are_a_number(theirs: Any) -> None:
    error = OSError()
    error.attempts = theirs  # type: ignore[attr-defined]
    assert attempts_of(error) == 1


@pytest.mark.parametrize(
    "headers",
    [dict, Fields(get=lambda name, otherwise: otherwise), Fields(get="no")],
    ids=["a class", "other arguments", "no function"],
)
async def test_what_is_called_headers_and_is_something_else_hides_no_error(headers: Any) -> None:
    error = OSError("down")
    error.headers = headers  # type: ignore[attr-defined]
    failures = iter([error, error])

    async def fails(value: int) -> int:
        for failure in failures:
            raise failure
        return value

    assert await retry(fails)(1) == 1


MISTAKES = [
    *PROGRAMMING_ERRORS,
    UnboundLocalError,
    ModuleNotFoundError,
    IndentationError,
    type("MyTypeError", (TypeError,), {}),
]


@pytest.mark.parametrize("kind", MISTAKES)
@pytest.mark.parametrize("on", [Exception, (Exception, OSError), RuntimeError])
async def test_programming_error_is_not_retried(kind: type[Exception], on: Any) -> None:
    service = Flaky(9, kind("x"))
    with pytest.raises(kind):
        await retry(service, on=on)(1)
    assert len(service.times) == 1


@pytest.mark.parametrize("kind", MISTAKES)
async def test_programming_error_is_retried_where_it_is_named(kind: type[Exception]) -> None:
    for on in (kind, (OSError, kind), lambda error: True):
        service = Flaky(2, kind("x"))
        assert (await retry(service, on=on)(1)) == 1
        assert len(service.times) == 3


@pytest.mark.parametrize("kind", [OSError, ValueError, KeyError, IndexError, RuntimeError, TimeoutError])
async def test_what_an_unlucky_call_raises_is_retried(kind: type[Exception]) -> None:
    assert (await retry(Flaky(2, kind("x")))(1)) == 1


def state_of(breaker: Breaker) -> CircuitState:
    """Asked anew each time; a type checker would take what was once seen for what still is."""
    return breaker.state


async def test_programming_error_neither_opens_nor_closes_a_circuit() -> None:
    breaker = Breaker(failures=2, open_for=1)
    wrong = circuit_breaker(Flaky(9, TypeError("x")), breaker=breaker)
    for _ in range(5):
        with pytest.raises(TypeError):
            await wrong(1)
        assert state_of(breaker) is CircuitState.CLOSED
    down = circuit_breaker(Flaky(2), breaker=breaker)
    for _ in range(2):
        with pytest.raises(OSError, match="down"):
            await down(1)
    assert state_of(breaker) is CircuitState.OPEN
    with pytest.raises(TypeError):  # the probe says nothing, so the next call is one again
        await wrong(1)
    assert state_of(breaker) is CircuitState.HALF_OPEN
    assert await down(1) == 1
    assert state_of(breaker) is CircuitState.CLOSED


async def test_predicate_of_a_circuit_that_fails_takes_no_place_for_good() -> None:
    def choose(error: Exception) -> bool:
        if not error.args:
            raise RuntimeError("bad predicate")
        return True

    breaker = Breaker(failures=1, open_for=1, on=choose)
    with pytest.raises(OSError, match="down"):
        await circuit_breaker(Flaky(1), breaker=breaker)(1)
    with pytest.raises(RuntimeError, match="bad predicate"):
        await circuit_breaker(Flaky(1, ValueError()), breaker=breaker)(1)
    assert await circuit_breaker(Flaky(0), breaker=breaker)(1) == 1


class Asked(Exception):
    """What a service answers that has too much to do."""

    status = 429

    def __init__(self, seconds: float) -> None:
        self.retry_after = seconds


def group(*errors: Exception) -> ExceptionGroup[Exception]:
    """As a `TaskGroup` in the function raises it, within another one."""
    return ExceptionGroup("outer", [ExceptionGroup("inner", list(errors))])


class Partial(ExceptionGroup[Exception], LookupError):
    """A group with a name of its own."""


@pytest.mark.parametrize(
    ("error", "on", "tried"),
    [
        (Partial("some", [ValueError()]), LookupError, 3),
        (Partial("some", [ValueError()]), OSError, 1),
        (Partial("some", [TypeError()]), Exception, 1),
        (group(ConnectionError(), OSError()), Exception, 3),
        (group(ConnectionError(), OSError()), OSError, 3),
        (group(ConnectionError(), ValueError()), OSError, 1),
        (group(ConnectionError(), ValueError()), ExceptionGroup, 3),
        (group(ConnectionError(), TypeError()), Exception, 1),
        (group(ConnectionError(), TypeError()), (OSError, TypeError), 3),
        (group(ConnectionError(), Frozen(404, False)), Exception, 1),
    ],
)
async def test_a_group_is_retried_if_all_that_is_in_it_would_be(
    error: Exception, on: Any, tried: int
) -> None:
    calls = 0

    async def ask(value: int) -> None:
        nonlocal calls
        calls += 1
        raise error

    with pytest.raises((ExceptionGroup, RetriesExhausted)):
        await retry(ask, attempts=3, on=on)(1)
    assert calls == tried


async def test_what_a_service_says_in_a_group_is_heard() -> None:
    loop = asyncio.get_running_loop()
    answers = iter([group(Asked(5), Asked(20), ValueError()), None])

    async def ask(value: int) -> str:
        error = next(answers)
        if error is not None:
            raise error
        return "well"

    began = loop.time()
    limited = adaptive_concurrency(retry(ask), most=100, start=100)
    assert await limited(1) == "well"
    assert loop.time() - began == pytest.approx(20, abs=0.1)
    assert limited.metrics()["concurrency_cuts"] == 1
