"""What failed is kept in a file, and fed back in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from asyncstream import (
    Checkpoints,
    CsvSink,
    CsvSource,
    JsonLinesSink,
    JsonLinesSource,
    MemoryStore,
    ParquetSink,
    ParquetSource,
    Pipeline,
    RejectedMessage,
    Sink,
    SourceError,
    SqliteSink,
    SqliteSource,
    call_context,
)
from asyncstream.connectors import DeadLetterSource, Items, Source, from_dead_letter, to_dead_letter
from asyncstream.errors import RetriesExhausted
from asyncstream.guards import retry
from asyncstream.operators.functions import FailedCall
from asyncstream.testing.loop import run_virtual


def test_failed_elements_go_through_a_file_and_come_back(tmp_path: Path) -> None:
    letters = tmp_path / "failed.jsonl"
    broken = True

    async def call(order: dict[str, int]) -> int:
        if broken and order["id"] % 3 == 0:
            raise ConnectionError("the service is down")
        return order["id"]

    done: list[int] = []
    pipeline = Pipeline()
    results = pipeline.source({"id": number} for number in range(10)).async_map(
        retry(call, attempts=2), on_error="route"
    )
    results.to(done)
    results.failed.map(to_dead_letter).to(JsonLinesSink(letters))
    run_virtual(pipeline.run())

    assert done == [1, 2, 4, 5, 7, 8]

    broken = False
    again = Pipeline()
    again.source(JsonLinesSource(letters)).map(from_dead_letter).async_map(call).to(done)
    run_virtual(again.run())

    assert sorted(done) == list(range(10))


FIELDS = ["value", "error", "causes", "attempts", "timestamp", "first_ms", "last_ms", "origin"]

KEPT: dict[str, tuple[Callable[[Path], Sink[Any]], Callable[[Path], Source[Any]]]] = {
    "json": (JsonLinesSink, JsonLinesSource),
    "csv": (CsvSink, CsvSource),
    "parquet": (ParquetSink, ParquetSource),
    "sqlite": (lambda path: SqliteSink(path, "t", columns=FIELDS), lambda path: SqliteSource(path, "t")),
}


@pytest.mark.parametrize("kept", KEPT)
def test_a_call_has_the_key_that_it_had_whatever_its_letter_was_kept_in(tmp_path: Path, kept: str) -> None:
    sink, source = KEPT[kept]
    keys: dict[str, list[str | None]] = {"a": [], "b": []}

    async def call(value: str) -> str:
        keys[value].append(call_context().idempotency_key)
        if len(keys[value]) == 1:
            raise ConnectionError("the service is down")
        return value

    pipeline = Pipeline("shop")
    called = pipeline.source(["a", "b"], name="in").async_map(
        call, name="call", on_error="route", effect=True
    )
    called.discard()
    called.failed.map(to_dead_letter).to(sink(tmp_path / "kept"))
    run_virtual(pipeline.run())
    again = Pipeline("shop")
    letters = again.source(DeadLetterSource(source(tmp_path / "kept")), name="letters")
    letters.async_map(call, name="call", effect=True).discard()
    run_virtual(again.run())
    assert keys["a"] == [keys["a"][0]] * 2
    assert keys["b"] == [keys["b"][0]] * 2
    assert None not in keys["a"]
    assert keys["a"] != keys["b"]


def test_letter_says_what_happened() -> None:
    error = RetriesExhausted(3, OSError("down"))
    error.__cause__ = OSError("down")

    letter = to_dead_letter(FailedCall("x", error, 3, 5, 100, 200))

    assert letter == {
        "value": "x",
        "error": "RetriesExhausted: gave up after 3 attempts: OSError: down",
        "causes": ["OSError: down"],
        "attempts": 3,
        "timestamp": 5,
        "first_ms": 100,
        "last_ms": 200,
    }


def test_errors_that_cause_each_other_come_to_an_end() -> None:
    error = ValueError("round")
    error.__cause__ = error

    assert len(to_dead_letter(FailedCall(1, error, 1, None, 0, 0))["causes"]) == 10


class Broker(Items[Any]):
    """Letters that a broker keeps until they are acknowledged."""

    hands_over = True

    def __init__(self) -> None:
        super().__init__([{"value": number, "error": "", "attempts": 1} for number in range(5)])
        self.acknowledged: list[Any] = []
        self.knew: list[bool] = []

    async def can_seek(self, position: Any) -> None:
        self._look()

    async def open(self) -> None:
        await super().open()
        self._look()

    def _look(self) -> None:
        self.knew.append(self.writer is not None and self.checkpoint_soon is not None)

    async def acknowledge(self, position: Any) -> None:
        self.acknowledged.append(position)


def test_broker_of_letters_hears_of_the_job_and_of_what_is_done() -> None:
    letters = Broker()
    done: list[int] = []
    store = MemoryStore()
    for _ in range(2):
        pipeline = Pipeline("again")
        pipeline.source(DeadLetterSource(letters), name="letters").to(done.append, name="done")
        run_virtual(pipeline.run(checkpoints=Checkpoints(store=store, every=60)))
    assert done == list(range(5))
    assert letters.acknowledged[-1] == 5
    assert set(letters.knew) == {True}
    assert DeadLetterSource(letters).hands_over


def test_source_of_letters_is_asked_whatever_a_source_is_asked() -> None:
    asked = {name for name, member in vars(Source).items() if callable(member) and not name.startswith("_")}
    assert asked - set(vars(DeadLetterSource)) == {"splits", "hold"}  # it is read as one stream


def _letters(tmp_path: Path, on_malformed: Literal["fail", "reject"]) -> DeadLetterSource:
    letters = tmp_path / "failed.jsonl"
    letters.write_text(
        '{"value": 1, "error": "", "attempts": 1, "origin": ["a", 1]}\n{"id": 2}\nhalf a li\n'
        '{"value": 3, "error": "", "attempts": 1, "origin": ["a", 3]}\n'
    )
    return DeadLetterSource(JsonLinesSource(letters, on_malformed=on_malformed))


def test_what_is_no_letter_goes_where_malformed_lines_go(tmp_path: Path) -> None:
    pipeline = Pipeline()
    letters = pipeline.source(_letters(tmp_path, "reject"))
    done: list[int] = []
    aside: list[Any] = []
    letters.to(done)
    letters.rejected.to(aside)
    run_virtual(pipeline.run())
    assert done == [1, 3]
    assert len(aside) == 2
    (other,) = (each for each in aside if isinstance(each, RejectedMessage))
    assert other.value == {"id": 2}
    assert "failed.jsonl" in other.source

    async def read() -> Any:
        source = _letters(tmp_path, "reject")
        await source.open()
        try:
            return await source.read()
        finally:
            await source.close()

    assert run_virtual(read()).origins == {0: ("a", 1), 1: ("a", 3)}


def test_the_error_for_what_is_no_letter_names_it(tmp_path: Path) -> None:
    pipeline = Pipeline()
    pipeline.source(_letters(tmp_path, "fail")).discard()
    with pytest.raises(SourceError, match=r"failed.jsonl.*expected a dead letter.*'id': 2"):
        run_virtual(pipeline.run())


@pytest.mark.parametrize("origin", ["half a [", '{"a": 1}', 5, '"a"'])
def test_an_origin_that_is_none_is_no_letter(origin: Any) -> None:
    pipeline = Pipeline()
    letters: Source[Any] = Items([{"value": 1, "error": "", "attempts": 1, "origin": origin}])
    pipeline.source(DeadLetterSource(letters)).discard()
    with pytest.raises(SourceError, match="whose origin is a list, or one as JSON"):
        run_virtual(pipeline.run())


@pytest.mark.parametrize("letter", [{}, {"value": 1}, [1], None])
def test_what_is_no_letter_is_refused(letter: object) -> None:
    with pytest.raises(TypeError, match="expected a dead letter"):
        from_dead_letter(letter)  # type: ignore[arg-type]
