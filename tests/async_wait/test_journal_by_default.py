"""A step that says nothing of a journal has one where that can be, and no job fails for it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    Checkpoints,
    DirectoryStore,
    Items,
    MemoryStore,
    Pipeline,
    PipelineError,
    SqliteStore,
    call_context,
)
from asyncstream.guards import retry
from asyncstream.operators.call_context import current_key
from tests.async_wait.charging import charging, crashed, kept_in

pytestmark = pytest.mark.usefixtures("virtual_time")

Options = dict[str, Any]


def by_default(charge: Any, results: list[Any], source: Any = None, **options: Any) -> Pipeline:
    source = Items(range(100)) if source is None else source
    return charging(source, charge, results, **({"journal": None} | options))


def journal_in(folder: Path) -> list[Path]:
    return list(folder.glob("*calls-*"))


@pytest.mark.parametrize("store", [DirectoryStore, lambda folder: SqliteStore(folder / "state.db")])
async def test_calls_that_ended_before_a_crash_are_not_made_again(
    store: Callable[[Path], Any], tmp_path: Path
) -> None:
    calls: Counter[int] = Counter()

    async def charge(value: int) -> int:
        calls[value] += 1
        await asyncio.sleep(1)
        return value * 10

    results: list[int] = []
    await crashed(by_default(charge, results), Checkpoints(store=store(tmp_path), every=30), 3.5)
    await by_default(charge, results).run(checkpoints=Checkpoints(store=store(tmp_path), every=30))

    assert set(results) == {value * 10 for value in range(100)}
    assert calls.total() == 110, "those that ran"
    assert set(calls) == set(range(100))


async def never_kept(value: int) -> Any:
    return lambda: value


async def large(value: int) -> str:
    return "x" * 70_000


@pytest.mark.parametrize(
    ("charge", "reason"), [(never_kept, "cannot keep a function"), (large, "more than 64 KiB")]
)
async def test_results_that_cannot_be_kept_end_the_journal_with_one_warning(
    charge: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results: list[Any] = []
    with caplog.at_level(logging.WARNING):
        await by_default(charge, results).run(checkpoints=kept_in(tmp_path))

    assert len(results) == 100
    (told,) = [record.getMessage() for record in caplog.records if "journal" in record.getMessage()]
    assert told.startswith("step 'charge': the journal cannot keep")
    assert reason in told
    assert "from now on its calls are not written down" in told
    assert journal_in(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"journal": False}, {}),
        ({"replay": "all"}, {}),
        ({}, {"every": None}),
        ({"source": iter(range(100))}, {}),
        ({}, {"store": MemoryStore()}),
    ],
    ids=["refused", "called again as asked", "it would only grow", "no positions", "no place"],
)
async def test_there_is_none_where_it_cannot_be(
    options: Options, settings: dict[str, Any], tmp_path: Path
) -> None:
    async def charge(value: int) -> int:
        await asyncio.sleep(1)
        return value

    given: Any = {"store": DirectoryStore(tmp_path), "every": 30} | settings
    checkpoints = Checkpoints(**given)
    await crashed(by_default(charge, [], **options), checkpoints, 5)
    assert journal_in(tmp_path) == []


@pytest.mark.parametrize("journal", [None, True])
async def test_a_result_is_taken_for_the_same_element_only(
    journal: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def charge(value: Any) -> Any:
        await asyncio.sleep(1)
        return {**value, "is": "charged"}

    def orders(first: int) -> Items[Any]:
        return Items([{"order": number, "lines": ["a", number]} for number in range(first, first + 50)])

    results: list[Any] = []
    await crashed(by_default(charge, results, orders(0), journal=journal), kept_in(tmp_path), 3.5)
    results.clear()
    with caplog.at_level(logging.WARNING):  # what has expired meanwhile is not read again
        await by_default(charge, results, orders(7), journal=journal).run(checkpoints=kept_in(tmp_path))

    assert [result["order"] for result in results] == list(range(7, 57))
    assert caplog.text.count("does not give the elements again that it gave before") == 1


async def test_calls_are_told_no_key_that_nobody_has_asked_for(tmp_path: Path) -> None:
    keys: set[str | None] = set()

    async def charge(value: int) -> int:
        keys.add(current_key())
        with pytest.raises(PipelineError, match="give the step effect=True"):
            call_context()
        return value

    for function in (charge, retry(charge, attempts=2)):
        await by_default(function, []).run(checkpoints=kept_in(tmp_path / str(len(keys))))
    assert keys == {None}


async def test_attempts_are_kept_by_default(tmp_path: Path) -> None:
    attempts: Counter[int] = Counter()

    async def charge(value: int) -> int:
        attempts[value] += 1
        raise ConnectionError

    def pipeline() -> Pipeline:
        guarded = retry(charge, attempts=5, timeout=None, wait_initial=1, wait_max=1, wait_jitter=0)
        return by_default(guarded, [], Items(range(10)), on_error="skip")

    await crashed(pipeline(), kept_in(tmp_path), 2.5)
    assert set(attempts.values()) == {3}
    await pipeline().run(checkpoints=kept_in(tmp_path))
    assert set(attempts.values()) == {5}
