"""What failed is kept in a file, and fed back in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from asyncstream import (
    Checkpoints,
    JsonLinesSink,
    JsonLinesSource,
    MemoryStore,
    Pipeline,
    RejectedMessage,
    SourceError,
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


@pytest.mark.parametrize("letter", [{}, {"value": 1}, [1], None])
def test_what_is_no_letter_is_refused(letter: object) -> None:
    with pytest.raises(TypeError, match="expected a dead letter"):
        from_dead_letter(letter)  # type: ignore[arg-type]
