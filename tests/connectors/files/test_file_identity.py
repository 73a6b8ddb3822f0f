"""A file that is not the one that was read is not read on; half a record is none."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from asyncstream import Checkpoints, CsvSource, DirectoryStore, JsonLinesSource, Pipeline, Source, SourceError
from asyncstream.codec import JsonCodec
from asyncstream.errors import PipelineError
from asyncstream.testing.loop import run_virtual
from tests.tiers import examples

pytestmark = pytest.mark.usefixtures("virtual_time")

CODEC = JsonCodec()


def read_on(source: Source[Any], position: Any = None, *, reads: int | None = None) -> tuple[list[Any], Any]:
    """What so many reads bring from a position on, and the position then, as a checkpoint has it."""

    async def main() -> tuple[list[Any], Any]:
        values: list[Any] = []
        await source.open()
        try:
            if position is not None:
                await source.seek(position)
            left = reads
            while left != 0 and (batch := await source.read()) is not None:
                values += batch.values
                left = None if left is None else left - 1
            return values, CODEC.decode(CODEC.encode(source.position()))
        finally:
            await source.close()

    return run_virtual(main())


def text_of(numbers: range, letter: str = "A") -> str:
    return "".join(f'{{"id":"{letter}{number:04}"}}\n' for number in numbers)


def table_of(numbers: range, letter: str = "A", header: str = "id,n") -> str:
    return f"{header}\n" + "".join(f"{letter}{number:04},1\n" for number in numbers)


JSON: tuple[Callable[..., Source[Any]], Callable[..., str]] = (JsonLinesSource, text_of)
CSV: tuple[Callable[..., Source[Any]], Callable[..., str]] = (CsvSource, table_of)
BOTH = pytest.mark.parametrize(("make", "text"), [JSON, CSV], ids=["json", "csv"])

TWENTY = range(20)

CHANGES: dict[str, Callable[[Callable[..., str]], str]] = {
    "cut": lambda text: text(range(3)),
    "emptied": lambda text: "",
    "replaced_by_a_longer_one": lambda text: text(range(30), "B"),
    "replaced_by_one_of_equal_length": lambda text: text(TWENTY, "C"),
    "head_cut_off": lambda text: text(range(10, 35)),
    "rewritten_before_the_position": lambda text: text(TWENTY).replace("A0009", "X0009"),
    "rewritten_at_the_beginning": lambda text: text(TWENTY).replace("A0000", "X0000"),
}


@BOTH
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("in_place", [True, False])
def test_changed_file_is_refused_or_read_from_its_beginning(
    tmp_path: Path, make: Any, text: Callable[..., str], change: str, in_place: bool
) -> None:
    path = tmp_path / "in"
    path.write_text(text(TWENTY))
    _, position = read_on(make(path, batch=10), reads=1)
    changed = CHANGES[change](text)
    if not in_place:
        path.rename(tmp_path / "in.1")
    path.write_text(changed)
    how = "changed where it is" if in_place else "replaced by another one"
    with pytest.raises(
        SourceError, match=rf"cannot go on at byte \d+ of .*in: .*{how}.*if_changed='start_over'"
    ):
        read_on(make(path), position)
    with pytest.raises(SourceError, match=rf"cannot go on at byte \d+ of .*in: .*{how}"):
        run_virtual(make(path).can_seek(position))
    run_virtual(make(path, if_changed="start_over").can_seek(position))
    assert read_on(make(path, if_changed="start_over"), position)[0] == read_on(make(path))[0]


def test_it_is_said_of_the_last_start_only_that_it_was_over(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text(text_of(TWENTY))
    source: Source[Any] = JsonLinesSource(path, batch=10, if_changed="start_over")
    _, position = read_on(source, reads=1)
    for letter in "BA":
        path.write_text(text_of(TWENTY, letter))
        read_on(source, position)
        assert source.started_over == (letter == "B")


def test_long_files_are_told_apart_by_both_ends_of_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "in"
    long = text_of(range(2000))
    path.write_text(long)
    _, position = read_on(JsonLinesSource(path, batch=1000), reads=1)
    assert read_on(JsonLinesSource(path), position)[0][0] == {"id": "A1000"}
    for number in ("A0000", "A0999"):
        path.write_text(long.replace(number, "XXXXX"))
        with pytest.raises(SourceError, match="cannot go on"):
            read_on(JsonLinesSource(path), position)
    path.write_text(long.replace("A1000", "XXXXX"))  # not read yet
    assert read_on(JsonLinesSource(path), position)[0][0] == {"id": "XXXXX"}


def test_other_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text(table_of(TWENTY))
    _, position = read_on(CsvSource(path, batch=10), reads=1)
    path.write_text(table_of(TWENTY, header="no,n"))
    with pytest.raises(SourceError, match="it begins with other bytes than it did"):
        read_on(CsvSource(path), position)


@BOTH
def test_file_that_was_appended_to_copied_or_moved_is_read_on(
    tmp_path: Path, make: Any, text: Callable[..., str]
) -> None:
    path = tmp_path / "in"
    path.write_text(text(TWENTY))
    _, position = read_on(make(path, batch=10), reads=1)
    shutil.copy(path, tmp_path / "copy")
    whole = text(range(25))
    (tmp_path / "copy").write_text(whole)
    found, at_end = read_on(make(tmp_path / "copy"), position)
    assert [record["id"] for record in found] == [f"A{number:04}" for number in range(10, 25)]
    assert read_on(make(tmp_path / "copy"), at_end)[0] == []


@pytest.mark.parametrize("before", ["", "id,n\n"])
def test_file_without_records_at_the_checkpoint_is_read_from_its_first_record(
    tmp_path: Path, before: str
) -> None:
    path = tmp_path / "in.csv"
    path.write_text(before)
    found, position = read_on(CsvSource(path))
    assert found == []
    path.write_text("id,n\na,1\n")
    assert read_on(CsvSource(path), position)[0] == [{"id": "a", "n": "1"}]


@BOTH
def test_position_without_a_fingerprint_is_accepted_and_said_to_be_checked_less(
    tmp_path: Path, make: Any, text: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "in"
    path.write_text(text(TWENTY))
    _, position = read_on(make(path, batch=10), reads=1)
    old = {"offset": position["offset"], "lines": position["lines"]}
    assert len(read_on(make(path), old)[0]) == 10
    assert "only the size was checked" in caplog.text
    path.write_text(text(range(3)))
    with pytest.raises(SourceError, match="it has only"):
        read_on(make(path), old)


def test_file_that_has_lost_what_was_not_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "in"
    path.write_text(text_of(TWENTY))
    _, position = read_on(JsonLinesSource(path, batch=10), reads=1)
    path.write_text(text_of(range(12)))
    assert len(read_on(JsonLinesSource(path), position)[0]) == 2
    assert "is shorter than it was" in caplog.text


@BOTH
async def test_file_that_is_cut_while_it_is_read_is_no_end_of_input(
    tmp_path: Path, make: Any, text: Callable[..., str]
) -> None:
    path = tmp_path / "in"
    path.write_text(text(TWENTY))

    source = make(path)
    await source.open()
    await source.read()
    os.truncate(path, 30)
    with pytest.raises(SourceError, match="was cut to 30 bytes"):
        await source.read()
    with pytest.raises(SourceError, match="was cut to 30 bytes"):
        source.position()
    await source.close()


# -- a last line without an end


UNFINISHED: dict[str, tuple[Any, bytes, bytes, list[Any]]] = {
    "csv_number": (CsvSource, b"id,n\n1,100\n2,25", b"00\n3,7\n", ["100", "2500", "7"]),
    "csv_line_end_cut_in_half": (CsvSource, b"id,n\r\n1,100\r", b"\n2,7\r\n", ["100", "7"]),
    "csv_quotes": (CsvSource, b'id,n\n1,"a\nb', b'\nc"\n2,7\n', ["a\nb\nc", "7"]),
    "csv_quotes_after_a_line_end": (CsvSource, b'id,n\n1,"a\n', b'b"\n2,7\n', ["a\nb", "7"]),
    "csv_header": (CsvSource, b"id,", b"n\n1,7\n", ["7"]),
    "csv_mark": (CsvSource, b"\xef\xbb", b"\xbfid,n\n1,7\n", ["7"]),
    "csv_character": (CsvSource, b"id,n\n1,\xc3", b"\xa9\n", ["é"]),
    "json_number": (JsonLinesSource, b'{"n":1}\n{"n":2', b"5}\n", [1, 25]),
    "json_that_is_valid": (JsonLinesSource, b"1\n2", b"5\n", [1, 25]),
    "json_character": (JsonLinesSource, b'"\xc3', b'\xa9"\n', ["é"]),
    "json_line_end_cut_in_half": (JsonLinesSource, b"1\r", b"\n2\r\n", [1, 2]),
    "json_mark": (JsonLinesSource, b"\xef\xbb\xbf", b"1\n", [1]),
    "json_line_too_long": (JsonLinesSource, b"1\n" + b"9" * 60, b"9\n2\n", [1, 2]),
}


@pytest.mark.parametrize("case", UNFINISHED)
def test_unfinished_last_line_is_read_once_it_is_whole(tmp_path: Path, case: str) -> None:
    make, before, after, expected = UNFINISHED[case]
    path = tmp_path / "in"
    path.write_bytes(before)

    def source() -> Any:
        how: dict[str, Any] = {"max_line_bytes": 40, "on_malformed": "reject"} if "too_long" in case else {}
        return make(path, complete=False, **how)

    first, position = read_on(source())
    with path.open("ab") as file:
        file.write(after)
    second, _ = read_on(source(), position)
    assert [value["n"] if isinstance(value, dict) else value for value in first + second] == expected


@pytest.mark.parametrize("case", ["csv_number", "json_that_is_valid"])
@pytest.mark.parametrize("within_a_run", [True, False])
async def test_line_that_was_taken_as_a_whole_and_goes_on_is_an_error(
    tmp_path: Path, case: str, within_a_run: bool
) -> None:
    make, before, after, _ = UNFINISHED[case]
    path = tmp_path / "in"
    path.write_bytes(before)

    source = make(path)
    await source.open()
    assert await source.read() is not None
    position = source.position()
    with path.open("ab") as file:
        file.write(after)
    if not within_a_run:
        await source.close()
        source = make(path)
        await source.open()
        await source.seek(position)
    with pytest.raises(SourceError, match=r"line \d: it was read as a whole line.*complete=False"):
        await source.read()
    await source.close()


@pytest.mark.parametrize(
    ("before", "after"), [(b"1\n2", b"\n3\n"), (b"1\n2", b"\r\n3\n"), (b"1\r\n2\r", b"\n3\n")]
)
def test_line_whose_end_alone_is_appended_was_whole(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "in"
    path.write_bytes(before)
    first, position = read_on(JsonLinesSource(path))
    assert read_on(JsonLinesSource(path), position)[0] == []
    with path.open("ab") as file:
        file.write(after)
    assert first + read_on(JsonLinesSource(path), position)[0] == [1, 2, 3]


PIECES = st.lists(st.sampled_from(["1", '"é"', '"a"', "", "23"]), max_size=8)
CUTS = st.lists(st.integers(0, 80), max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(80))
@given(PIECES, st.sampled_from(["\n", "\r\n"]), st.booleans(), CUTS, st.integers(1, 3), st.booleans())
@example(['"a"', "1"], "\r\n", True, [7, 8, 9], 1, False)
def test_file_read_in_pieces_as_it_grows_gives_what_the_whole_file_gives(
    tmp_path: Path, lines: list[str], end: str, mark: bool, cuts: list[int], batch: int, is_table: bool
) -> None:
    path = tmp_path / "in"
    if is_table:
        records = [f'{line or "x"},"p{end}q""r"' if "2" in line else f"{line},é" for line in lines]
        text = "".join(f"{record}{end}" for record in ["a,b", *records])
    else:
        text = "".join(f"{line}{end}" for line in lines)
    data = (b"\xef\xbb\xbf" if mark else b"") + text.encode()
    make: Any = CsvSource if is_table else JsonLinesSource
    found: list[Any] = []
    position = None
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        path.write_bytes(data[:cut])
        more, position = read_on(make(path, batch=batch, complete=False), position)
        found += more
    assert found == read_on(make(path))[0]


def test_job_reads_on_where_the_file_was_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,amount\n1,100\n2,25")
    found: list[Any] = []

    def run() -> None:
        pipeline = Pipeline("p")
        source = CsvSource(path, types={"amount": int}, complete=False)
        pipeline.source(source, name="in").to(found, name="out")
        asyncio.run(pipeline.run(checkpoints=Checkpoints(store=DirectoryStore(tmp_path / "checkpoints"))))

    run()
    with path.open("a") as file:
        file.write("00\n3,300\n")
    run()
    assert [record["amount"] for record in found] == [100, 2500, 300]


def test_wrong_arguments_are_refused_at_once() -> None:
    for make in (JsonLinesSource, CsvSource):
        with pytest.raises(PipelineError, match="complete: expected True or False"):
            make("in", complete="no")  # type: ignore[call-overload]
        with pytest.raises(PipelineError, match="if_changed: expected one of 'fail', 'start_over'"):
            make("in", if_changed="ignore")  # type: ignore[call-overload]


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "asyncstream.sources")


async def read_rest(source: Source[Any]) -> None:
    while await source.read() is not None:
        pass


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("kind", [JsonLinesSource, CsvSource])
async def test_a_file_that_is_cut_behind_what_was_read_has_not_come_to_its_end(
    tmp_path: Path, kind: Any, complete: bool
) -> None:
    path = tmp_path / "in"
    line = b'"%064x"\n' % 0
    path.write_bytes(line * 20_000)
    source = kind(path, complete=complete, batch=100)
    await source.open()
    await source.read()
    os.truncate(path, 19_999 * len(line))
    with pytest.raises(SourceError, match=r"was cut to \d+ bytes, of \d+, while it was read"):
        await read_rest(source)
    await source.close()


async def test_a_file_may_grow_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"1\n" * 1000)
    source = JsonLinesSource(path, batch=100)
    await source.open()
    await source.read()
    with path.open("ab") as file:
        file.write(b"2\n")
    await read_rest(source)
    await source.close()


REWRITTEN: dict[str, Callable[[bytes], bytes]] = {
    "to the same length": lambda text: text.replace(b"1", b"7"),
    "to a greater length": lambda text: text.replace(b"1", b"7") * 2,
    "where a line had ended": lambda text: text[3:] + b"12\n",
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("look", ["read", "position"])
@pytest.mark.parametrize("how", REWRITTEN)
async def test_a_file_that_is_rewritten_where_it_is_while_it_is_read_is_another_one(
    tmp_path: Path, how: str, look: str, compressed: bool
) -> None:
    """A log rotation by `copytruncate` that has gone on behind the place, say; or `sort -o`."""
    path = tmp_path / ("in.jsonl.gz" if compressed else "in.jsonl")
    pack: Callable[[bytes], bytes] = gzip.compress if compressed else bytes
    text = b"".join(b"%d\n" % (number % 1000) for number in range(40_000))
    path.write_bytes(pack(text))
    source = JsonLinesSource(path, batch=100)
    await source.open()
    await source.read()
    with path.open("rb+") as file:
        file.write(pack(REWRITTEN[how](text)))
        file.truncate()
    os.utime(path, ns=(0, 1))  # within one tick of the clock of the file system
    with pytest.raises(SourceError, match=r"was rewritten while it was read|was cut to"):
        await source.read() if look == "read" else source.position()
    await source.close()


async def test_a_file_that_is_replaced_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    """As `sed -i` and most editors do: what is open stays what it was."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"1\n" * 40_000)
    source = JsonLinesSource(path, batch=100)
    await source.open()
    await source.read()
    (tmp_path / "new").write_bytes(b"2\n" * 40_000)
    (tmp_path / "new").replace(path)
    found: list[Any] = []
    while (batch := await source.read()) is not None:
        found += batch.values
    assert found == [1] * 39_900
    await source.close()
