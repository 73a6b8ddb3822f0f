"""
CSV's records are read and written together where they can be: that is only quicker.
"""

from __future__ import annotations

import gzip
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from asyncstream import Checkpoints, MemoryStore, ParquetSink, Pipeline
from asyncstream.connectors import CsvFolderSink, CsvSink, CsvSource
from asyncstream.connectors.files.encodings import CsvLines
from asyncstream.connectors.lines import Lines
from asyncstream.errors import SinkBroken, SinkError
from asyncstream.testing.loop import run_virtual
from tests.connectors.files.reading import check_replay, lines_of, read_all
from tests.tiers import examples

WELL_FORMED = ["1,b", '2,"x\ny"', '3,"a""b"', "4,é", '"5",', "6,\u2028"]
OTHERS = ["", "", "seven,1", "1,2,3", '8,"open', '"8"1,c', "9,a\rb", '1,"' + "z\n" * 60 + '"', b"1,\xff"]


class Numbered(NamedTuple):
    a: int
    b: str


WAYS: dict[str, dict[str, Any]] = {
    "text": {},
    "types": {"types": {"a": int}},
    "model": {"model": Numbered},
    "given": {"columns": ["x", "y"]},
    "incomplete": {"complete": False},
}

some_records = st.lists(
    st.tuples(st.sampled_from(WELL_FORMED), st.integers(0, 90)).map(lambda drawn: [drawn[0]] * drawn[1])
    | st.sampled_from(OTHERS).map(lambda record: [record]),
    max_size=8,
)


def data_of(groups: list[list[Any]], end: str) -> bytes:
    records = ["a,b", *(record for group in groups for record in group)]
    return end.encode().join(each if isinstance(each, bytes) else each.encode() for each in records)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(
    some_records,
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(sorted(WAYS)),
    st.sampled_from([40, 100, 2**20]),
    st.sampled_from([64, 100, 1000]),
    st.booleans(),
)
@example([[""], ["seven,1"]], "\n", "types", 100, 100, False)  # an empty line ends what is in memory
def test_records_are_the_same_read_together_and_one_by_one(
    tmp_path: Path, groups: list[list[Any]], end: str, way: str, limit: int, batch: int, is_packed: bool
) -> None:
    data = data_of(groups, end)
    path = lines_of(tmp_path / "in.csv", gzip.compress(data) if is_packed else data)

    def source(batch: int = batch) -> CsvSource[Any]:
        return CsvSource(
            path,
            **WAYS[way],
            on_malformed="reject",
            batch=batch,
            max_line_bytes=limit,
            compression="gzip" if is_packed else None,
        )

    together, one_by_one = read_all(source()), read_all(source(1))
    assert together[:2] == one_by_one[:2]
    check_replay(source)


def test_lines_are_looked_at_one_by_one_only_where_a_record_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = "".join(f'{number},"row\n{number}"\n' for number in range(50_000))
    path = lines_of(tmp_path / "in.csv", "n,text\n" + records)
    take, taken = Lines.take, 0

    def counted(lines: Lines) -> bytes:
        nonlocal taken
        taken += 1
        return take(lines)

    monkeypatch.setattr(Lines, "take", counted)
    values, _, positions = read_all(CsvSource(path))
    assert values == [{"n": str(number), "text": f"row\n{number}"} for number in range(50_000)]
    assert len(positions) == 50
    assert taken < 1000


cells = st.sampled_from([None, True, 7, 10**5000, 0.1, float("nan"), "", "x", 'a"b', "c\nd", "e\rf", "g,h"])
rows = st.dictionaries(st.sampled_from(["a", "b", "c"]), cells | st.sampled_from(["\ud800", [1]]), min_size=1)


@settings(max_examples=examples(150))
@given(st.lists(rows | st.just((1, 2)), min_size=1, max_size=5), st.sampled_from([None, ["a"], ["b", "a"]]))
def test_lines_are_the_same_written_together_and_one_by_one(
    values: list[Any], columns: list[str] | None
) -> None:
    lines = CsvLines(columns, ",", None)
    if columns is None and isinstance(values[0], dict):
        with suppress(ValueError):  # of an element that cannot be written
            lines.find(values[0])
    together = lines.lines(values)
    if together is not None:
        assert together == b"".join(map(lines.line, values))
    elif all(type(value) is dict and value.keys() == set(lines.columns) for value in values):
        # only for what csv quotes by its line end, or what cannot be written, or not as it is
        found = [cell for value in values for cell in value.values()]
        assert any(cell in ("e\rf", "\ud800", [1], 10**5000) for cell in found)


@pytest.mark.parametrize("columns", [None, ["n", "text"]])
def test_what_comes_before_an_element_that_cannot_be_written_is_written(
    tmp_path: Path, columns: list[str] | None
) -> None:
    values = [{"n": number, "text": "\ud800" if number == 200 else "x"} for number in range(300)]
    sink = CsvSink(path := tmp_path / "out.csv", columns=columns)

    async def main() -> None:
        await sink.open()
        with pytest.raises(SinkError, match=r"cannot write \{'n': 200, "):
            await sink.write(values, None)
        assert sink.taken() == 200
        await sink.write(values[201:], None)
        await sink.close()

    run_virtual(main())
    found, _, _ = read_all(CsvSource(path, types={"n": int}))
    assert [row["n"] for row in found] == [*range(200), *range(201, 300)]


@pytest.mark.parametrize("header", [b"n,\xff\n1,2\n", b'n,"' + b"x" * 200_000 + b"\n"])
async def test_a_file_whose_header_cannot_be_read_is_not_written_behind(
    tmp_path: Path, header: bytes
) -> None:
    path = tmp_path / "out.csv"
    path.write_bytes(header)
    sink = CsvSink(path, existing="append")
    for begin in (sink.open(), sink.recover(None)):
        with pytest.raises(SinkError, match=r"cannot write behind what is in .*: its header cannot be read"):
            await begin
    assert path.read_bytes() == header


class Odd:
    """Does not tell its only field."""

    __attrs_attrs__ = (SimpleNamespace(name="n"),)

    @property
    def n(self) -> int:
        raise OSError("on purpose")


@pytest.mark.parametrize("columns", [None, ["n"]])
async def test_the_first_element_costs_itself_as_each_other_does(
    tmp_path: Path, columns: list[str] | None
) -> None:
    sink = CsvSink(path := tmp_path / "out.csv", columns=columns)
    await sink.open()
    for values in ([Odd()], [{"n": 1}, Odd()]):
        with pytest.raises(SinkError, match=r"cannot write <.*Odd .* to .*: OSError: on purpose") as caught:
            await sink.write(values, None)
        assert not isinstance(caught.value, SinkBroken)
        assert sink.taken() == len(values) - 1
    await sink.close()
    assert path.read_bytes() == b"n\n1\n"


@pytest.mark.parametrize("sink", [CsvSink, CsvFolderSink])
def test_an_element_that_cannot_be_written_leaves_no_columns(tmp_path: Path, sink: Any) -> None:
    """Half of a character, of which there are no bytes, in the first name of all or in a value."""
    pipeline = Pipeline("columns")
    elements = [{"\ud800": 1}, {"a": "\ud800"}, {"b": object()}, {"n": 1}, {"n": 2}]
    pipeline.source(elements, name="in").to(sink(tmp_path / "out"), on_error="skip", name="out")
    checkpoints = None if sink is CsvSink else Checkpoints(store=MemoryStore())
    run_virtual(pipeline.run(checkpoints=checkpoints))
    (file,) = [tmp_path / "out"] if sink is CsvSink else (tmp_path / "out").glob("part-*.csv")
    assert file.read_bytes() == b"n\n1\n2\n"


@pytest.mark.parametrize("sink", [CsvSink, CsvFolderSink, ParquetSink])
async def test_names_of_columns_are_texts(tmp_path: Path, sink: Any) -> None:
    written = sink(tmp_path / "out")
    await written.open()
    with pytest.raises(SinkError, match=r"TypeError: expected names of columns, got 1$"):
        await written.write([{1: 2, "n": 3}], None)
    await written.close()
