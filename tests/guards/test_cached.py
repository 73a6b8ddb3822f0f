"""Cache, on a virtual clock."""

from __future__ import annotations

import asyncio
import gc
import pickle
import sys
import weakref
from contextlib import suppress
from typing import Any

import pytest
from cachetools import TTLCache

from asyncstream.errors import PipelineError
from asyncstream.guards import Attempt, cached, current_attempt, retry, single_flight
from asyncstream.testing.loop import run_virtual
from tests.guards.services import Flaky, now_ms

pytestmark = pytest.mark.usefixtures("virtual_time")


def calls(at: list[float], **options: Any) -> list[int]:
    """When the service is called if the same element is asked about at these seconds."""
    service = Flaky(0)

    async def main() -> None:
        async with cached(service, **options) as guarded:
            for when in at:
                await asyncio.sleep(when - now_ms() / 1000)
                await guarded(options.get("value"))

    run_virtual(main())
    return service.times


async def test_answer_is_kept_for_its_time() -> None:
    service = Flaky(0)
    async with cached(service, ttl=10) as guarded:
        assert await guarded(7) == 7
        await asyncio.sleep(9.999)
        assert await guarded(7) == 7
        await asyncio.sleep(0.001)
        assert await guarded(7) == 7
        assert guarded.metrics() == {"cached": 1, "cache_misses": 2, "cache_renewed": 0}
    assert service.times == [0, 10_000]


def test_answer_without_a_time_is_kept() -> None:
    assert calls([0, 1e6], ttl=None) == [0]


async def test_least_recently_used_makes_room() -> None:
    service = Flaky(0)
    guarded = cached(service, size=2)
    for value in (1, 2, 1, 3, 1, 2):
        await guarded(value)
    assert guarded.metrics()["cache_misses"] == 4  # 1, 2, 3, and 2 again


def test_answer_that_there_is_nothing_has_a_time_of_its_own() -> None:
    assert calls([0, 1, 2, 3], ttl=10, negative_ttl=2) == [0, 2000]


def test_answer_that_there_is_nothing_need_not_be_kept() -> None:
    assert calls([0, 1, 2], negative_ttl=0) == [0, 1000, 2000]


async def test_errors_are_kept_if_asked_for() -> None:
    service = Flaky(1, KeyError("no such plane"))

    guarded = cached(service, errors=LookupError, negative_ttl=5)
    for _ in range(3):
        with pytest.raises(KeyError) as caught:
            await guarded(1)
    depth = 0
    traceback = caught.value.__traceback__
    while traceback is not None:
        depth, traceback = depth + 1, traceback.tb_next
    assert depth <= 3  # it does not grow with each time that it is raised
    await asyncio.sleep(5)
    assert await guarded(1) == 1
    assert service.times == [0, 5000]


async def test_a_kept_error_keeps_nothing_alive_of_the_call_that_raised_it() -> None:
    """Its traceback did: of an HttpLookup the whole body that came with a refusal, for each kept error."""

    class Answer:
        """What a call has in hand."""

    class Refusal(Exception):
        __slots__ = ("status",)

        def __init__(self, status: int) -> None:
            super().__init__(f"refused with {status}")
            self.status = status

    answers: list[weakref.ref[Answer]] = []

    async def ask(number: int) -> None:
        answer = Answer()
        answers.append(weakref.ref(answer))
        try:
            raise KeyError(number)
        except KeyError as error:
            raise Refusal(422) from error

    guarded = cached(ask, errors=Refusal)
    with suppress(Refusal):
        await guarded(1)
    gc.collect()
    assert answers[0]() is None
    with pytest.raises(Refusal, match="refused with 422") as caught:
        await guarded(1)
    assert len(answers) == 1
    assert caught.value.status == 422
    assert repr(caught.value.__cause__) == "KeyError(1)"


class OwnNew(Exception):
    def __new__(cls, *arguments: Any) -> Any:
        return super().__new__(cls)


class SaysWhichItIs(Exception):
    def __str__(self) -> str:
        return str(id(self))


@pytest.mark.parametrize("error", [OwnNew(), SaysWhichItIs()], ids=lambda error: type(error).__name__)
async def test_an_error_of_which_no_other_can_be_made_is_kept_as_it_is(error: Exception) -> None:
    async def ask(number: int) -> None:
        raise error

    guarded = cached(ask, errors=(OwnNew, SaysWhichItIs))
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            await guarded(1)
        assert caught.value is error


async def test_other_errors_are_not_kept() -> None:
    guarded = cached(Flaky(1))
    with pytest.raises(OSError, match="down"):
        await guarded(1)
    assert await guarded(1) == 1


async def test_stale_answer_is_given_while_it_is_renewed() -> None:
    versions = iter("abc")

    async def versioned(value: int) -> str:
        await asyncio.sleep(1)
        return next(versions)

    async with cached(versioned, ttl=10, stale_for=5) as guarded:
        assert await guarded(1) == "a"  # at 1, fresh until 11
        await asyncio.sleep(11)
        assert [await guarded(1), await guarded(1)] == ["a", "a"]
        assert now_ms() == 12_000  # nobody has waited
        await asyncio.sleep(2)
        assert await guarded(1) == "b"  # renewed at 13, fresh until 23, stale until 28
        await asyncio.sleep(14)
        assert await guarded(1) == "c"
        assert guarded.metrics() == {"cached": 3, "cache_misses": 2, "cache_renewed": 1}


async def test_stale_answer_outlives_a_renewal_that_fails() -> None:
    service = Flaky(0)

    async with cached(service, ttl=10, stale_for=5, errors=OSError) as guarded:
        await guarded(1)
        await asyncio.sleep(11)
        service.failures = 1
        assert await guarded(1) == 1
        await asyncio.sleep(1)
        assert await guarded(1) == 1
        await asyncio.sleep(1)
    assert service.times == [0, 11_000, 12_000]


async def test_renewal_is_no_attempt_of_the_call_that_began_it() -> None:
    seen: list[Attempt] = []

    async def ask(value: str) -> str:
        seen.append(current_attempt())
        return value

    guarded = retry(cached(ask, ttl=1, stale_for=10), idempotency_key=str)
    await guarded("tea")
    await asyncio.sleep(2)
    await guarded("tea")
    await asyncio.sleep(1)
    assert seen == [Attempt(1, "tea"), Attempt()]


async def test_close_ends_renewals() -> None:
    service = Flaky(0)

    async with cached(service, ttl=1, stale_for=100) as guarded:
        await guarded(1)
        await asyncio.sleep(2)
        service.takes = 1000
        await guarded(1)
        await asyncio.sleep(1)
        assert service.running == 1
    assert service.running == 0
    assert now_ms() == 3000


async def test_cache_of_cachetools_is_accepted() -> None:
    store: TTLCache[Any, Any] = TTLCache(maxsize=10, ttl=1000)
    guarded = cached(Flaky(0), cache=store)
    await guarded(1)
    await guarded(1)
    assert len(store) == 1
    assert guarded.metrics()["cached"] == 1


async def test_hit_does_not_suspend() -> None:
    guarded = cached(Flaky(0))
    await guarded(4)
    with pytest.raises(StopIteration):
        guarded.invoke(4).send(None)


async def test_element_that_cannot_be_a_key_asks_for_one() -> None:
    with pytest.raises(PipelineError, match="give key="):
        await cached(Flaky(0))({})
    assert await cached(Flaky(0), key=repr)({}) == {}


async def test_no_library_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cachetools", None)
    service = Flaky(0)
    guarded = cached(service)
    assert [await guarded(1), await guarded(1)] == [1, 1]
    assert len(service.times) == 1


async def test_what_was_used_last_is_kept_also_in_another_process() -> None:
    guarded: Any = cached(Flaky(0), size=2)
    for there in (guarded, pickle.loads(pickle.dumps(guarded))):
        for number in (1, 2, 1, 3):
            await there(number)
        assert list(there._cache) == [1, 3]


@pytest.mark.parametrize("guard", [cached, single_flight])
def test_key_may_be_the_name_of_a_field_or_several(guard: Any) -> None:
    asked: list[Any] = []

    async def ask(row: dict[str, int]) -> int:
        asked.append(row)
        await asyncio.sleep(1)
        return row["id"]

    rows = [{"id": 1, "day": 1, "n": 1}, {"id": 1, "day": 1, "n": 2}, {"id": 1, "day": 2, "n": 3}]

    async def main(key: Any) -> list[int]:
        asked.clear()
        async with guard(ask, key=key) as guarded:
            return list(await asyncio.gather(*map(guarded, rows)))

    for key, calls in (("id", 1), (("id", "day"), 2), ("n", 3)):
        assert run_virtual(main(key)) == [1, 1, 1]
        # a cache alone does not wait for calls that are under way
        assert len(asked) == (calls if guard is single_flight else 3)
    with pytest.raises(PipelineError, match="key"):
        guard(ask, key=7)


@pytest.mark.parametrize(
    "options",
    [
        {"errors": "OSError"},
        {"errors": (int,)},
        {"errors": (KeyboardInterrupt,)},
        {"cache": 7},
        {"ttl": None, "stale_for": 1},
        {"ttl": None, "stale_if_error": 1},
        {"name": False},
    ],
)
def test_wrong_argument_is_refused_when_built(options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match=f"^{next(iter(options))}: expected"):
        cached(Flaky(0), **options)


def test_class_in_place_of_a_type_of_errors_is_not_told_to_be_an_instance() -> None:
    with pytest.raises(PipelineError, match=r"got <class 'KeyboardInterrupt'>$"):
        cached(Flaky(0), errors=KeyboardInterrupt)  # type: ignore[arg-type]
    cached(Flaky(0), ttl=None, negative_ttl=5, stale_for=1)


def test_answers_do_not_go_to_another_process_whose_clock_is_another() -> None:
    guarded = cached(Flaky(0), ttl=60)

    async def ask_at(seconds: float, guarded: Any) -> None:
        await asyncio.sleep(seconds)
        await guarded(1)

    run_virtual(ask_at(1e6, guarded))
    sent: Any = pickle.loads(pickle.dumps(guarded))
    for _ in range(2):
        run_virtual(ask_at(0, sent))
    assert sent.inner.times == [10**9, 0]
