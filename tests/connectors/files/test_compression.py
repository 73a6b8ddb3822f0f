"""Lines in compressed files: pieces that end at checkpoints, and places in what a file holds."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import tracemalloc
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import (
    Checkpoints,
    CsvSink,
    CsvSource,
    DirectoryStore,
    JsonLinesSink,
    JsonLinesSource,
    Pipeline,
    PipelineError,
    SinkError,
    Source,
    SourceError,
)
from asyncstream.connectors import RejectedLine
from asyncstream.connectors.files.compression import unpacked

ROWS = [{"n": number, "text": "x" * (number % 300)} for number in range(5000)]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def pack(data: bytes, ending: str) -> bytes:
    return gzip.compress(data) if ending == "gz" else zstandard.ZstdCompressor().compress(data)


def unpack(data: bytes, ending: str) -> bytes:
    if ending == "gz":
        return gzip.decompress(data)
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        return reader.read()


ENDINGS = pytest.mark.parametrize("ending", ["gz", "zst"])


async def read_on(source: Source[Any], position: Any = None) -> list[Any]:
    await source.open()
    if position is not None:
        await source.can_seek(position)
        await source.seek(position)
    rows: list[Any] = []
    try:
        while (batch := await source.read()) is not None:
            rows += batch.values
    finally:
        await source.close()
    return rows


@ENDINGS
async def test_pieces_are_read_as_one_file_and_gone_on_in(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"in.jsonl.{ending}"
    path.write_bytes(pack(LINES[:1001], ending) + pack(b"", ending) + pack(LINES[1001:], ending))
    assert await read_on(JsonLinesSource(path)) == ROWS
    source = JsonLinesSource(path, batch=1700)
    await source.open()
    shares = []
    for read in (1700, 3400):
        await source.read()
        shares.append(source.progress() or 0)
        assert await read_on(JsonLinesSource(path), source.position()) == ROWS[read:]
    assert 0 < shares[0] <= shares[1] <= 1
    await source.close()


@ENDINGS
async def test_file_that_grows_is_read_on(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"in.jsonl.{ending}"
    packed = pack(LINES, ending)
    path.write_bytes(packed[: len(packed) // 2])
    source = JsonLinesSource(path, complete=False)
    await source.open()
    rows: list[Any] = []
    while (batch := await source.read()) is not None:
        rows += batch.values
    path.write_bytes(packed)
    while (batch := await source.read()) is not None:
        rows += batch.values
    await source.close()
    assert rows == ROWS


@ENDINGS
async def test_damage_is_told_and_not_taken_for_the_end(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"in.jsonl.{ending}"
    packed = pack(LINES, ending)
    path.write_bytes(packed[:-9])
    with pytest.raises(SourceError, match="it ends in the midst of"):
        await read_on(JsonLinesSource(path))
    at = len(packed) - 8 if ending == "gz" else 2000  # the checksum; garbage before it is decompressed too
    path.write_bytes(packed[:at] + b"????" + packed[at + 4 :])
    with pytest.raises(SourceError, match=r"damaged (gzip|zstd) data"):
        await read_on(JsonLinesSource(path))


async def test_zeros_behind_pieces_of_gzip_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl.gz"
    middle = len(LINES) // 2
    # more of them than are decompressed in one go
    path.write_bytes(pack(LINES[:middle], "gz") + bytes(40_000) + pack(LINES[middle:], "gz") + bytes(512))
    source = JsonLinesSource(path, batch=4000)
    await source.open()
    first = await source.read()
    assert first is not None
    position = source.position()
    await source.close()
    assert [*first.values, *await read_on(JsonLinesSource(path), position)] == ROWS
    path.write_bytes(bytes(512) + pack(LINES, "gz"))
    with pytest.raises(SourceError, match="damaged gzip data"):
        await read_on(JsonLinesSource(path))


async def test_malformed_line_costs_itself_also_far_back(tmp_path: Path) -> None:
    path = tmp_path / "in.csv.gz"
    wrong = 'x,"' + "y" * 3_000_000  # a field that is too long for csv: what was read is gone back
    path.write_bytes(pack(f"n,text\n1,a\n{wrong}\n2,b\n3,c,d\n4,e\n".encode(), "gz"))
    source = CsvSource(path, on_malformed="reject", max_line_bytes=2**22)
    await source.open()
    batch = await source.read()
    assert batch is not None
    assert [row["n"] for row in batch.values] == ["1", "2", "4"]
    assert [(type(line), line.line_number) for line in batch.rejected] == [
        (RejectedLine, 3),
        (RejectedLine, 5),
    ]
    await source.close()


@pytest.mark.parametrize("ending", ["jsonl", "csv", "jsonl.gz", "csv.gz"])
async def test_line_that_is_too_long_does_not_hold_the_loop(tmp_path: Path, ending: str) -> None:
    """It is passed over in parts; what is given up amid it begins with it again, or goes on."""
    path = tmp_path / f"in.{ending}"
    text = b"1\n" + b"y" * 5_000_000 + b"\n2\n"
    path.write_bytes(pack(text, "gz") if ending.endswith("gz") else text)
    options: Any = {"on_malformed": "reject", "max_line_bytes": 1000}

    def source() -> Any:
        if ending.startswith("csv"):
            return CsvSource(path, columns=["n"], types={"n": int}, **options)
        return JsonLinesSource(path, **options)

    def values(batch: Any) -> list[Any]:
        return [value["n"] if isinstance(value, dict) else value for value in batch.values]

    def lines(batch: Any) -> list[Any]:
        return [(line.line_number, line.line, line.reason) for line in batch.rejected]

    first = source()
    await first.open()
    assert values(await first.read()) == [1]
    reading = asyncio.ensure_future(first.read())
    for _ in range(4):
        await asyncio.sleep(0)
        assert not reading.done()
    reading.cancel()
    await asyncio.wait({reading})
    position = first.position()
    second = source()
    await second.open()
    await second.seek(position)
    for one in (first, second):
        batch = await one.read()
        assert (values(batch), lines(batch)) == ([], [(2, "y" * 1000, "longer than 1000 bytes")])
        batch = await one.read()
        assert (values(batch), lines(batch)) == ([2], [])
        assert await one.read() is None
        await one.close()


@pytest.mark.parametrize("ending", ["gz", "zst"])
async def test_a_place_far_behind_is_gone_to_without_holding_the_loop(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"in.jsonl.{ending}"
    random = Random(1)  # and so hardly made smaller
    lines = b"".join(b'"%s"\n' % random.randbytes(50_000).hex().encode() for _ in range(60))
    path.write_bytes(pack(lines + b"1\n", ending))
    first, second = JsonLinesSource(path, batch=20), JsonLinesSource(path)
    await first.open()
    for _ in range(3):
        batch = await first.read()
        assert batch is not None
        assert len(batch.values) == 20
    position = first.position()
    await first.close()
    await second.open()
    going = asyncio.ensure_future(second.seek(position))
    for _ in range(5):
        await asyncio.sleep(0)
        assert not going.done()
    await going
    assert second.position() == position
    batch = await second.read()
    assert batch is not None
    assert batch.values == [1]
    await second.close()


@settings(deadline=None, max_examples=25)
@given(cuts=st.lists(st.integers(0, len(LINES)), max_size=5), read=st.integers(1, 4999))
def test_wherever_pieces_end_the_lines_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], read: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "in.jsonl.zst"
    ends = [0, *sorted(cuts), len(LINES)]
    path.write_bytes(b"".join(pack(LINES[begin:end], "zst") for begin, end in pairwise(ends)))

    async def main() -> None:
        source = JsonLinesSource(path, batch=read)
        await source.open()
        await source.read()
        position = source.position()
        await source.close()
        assert await read_on(JsonLinesSource(path), position) == ROWS[read:]

    asyncio.run(main())


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_few_bytes_of_which_many_come_are_decompressed_part_by_part(compression: str) -> None:
    size = 150 * 2**20
    packed = pack(bytes(size), "gz" if compression == "gzip" else "zst")
    tracemalloc.start()
    try:
        with unpacked(io.BytesIO(packed), compression) as file:
            found = sum(map(len, iter(lambda: file.read(2**20), b"")))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == size
    assert most < 80 * 2**20


@ENDINGS
@pytest.mark.parametrize("kind", [JsonLinesSink, CsvSink])
def test_sink_ends_a_piece_at_each_checkpoint_and_is_cut_off_there(
    tmp_path: Path, ending: str, kind: Any
) -> None:
    out, plain = tmp_path / f"out.{ending}", tmp_path / "plain"

    def pipeline(sink: Any, fails_at: int) -> Pipeline:
        def looks(row: dict[str, Any]) -> dict[str, Any]:
            if row["n"] == fails_at:
                raise ValueError("on purpose")
            return row

        built = Pipeline("rows")
        read = built.source(lambda: ROWS) if sink is plain else built.source(ROWS, name="in")
        read.map(looks, name="looks").to(kind(sink), name="out")
        return built

    kept = Checkpoints(store=DirectoryStore(tmp_path / "kept"), every=0.001)
    for fails_at in (1700, 3600):
        with pytest.raises(Exception, match="on purpose"):
            asyncio.run(pipeline(out, fails_at).run(checkpoints=kept))
    asyncio.run(pipeline(out, -1).run(checkpoints=kept))
    asyncio.run(pipeline(plain, -1).run())
    assert unpack(out.read_bytes(), ending) == plain.read_bytes()
    assert len(out.read_bytes()) < len(plain.read_bytes())


async def test_compressed_csv_is_appended_to_under_its_header(tmp_path: Path) -> None:
    path = tmp_path / "out.csv.gz"
    for columns in (["a", "b"], None):
        sink = CsvSink(path, columns=columns, existing="append")
        await sink.open()
        await sink.write([{"a": 1, "b": 2}], None)
        await sink.flush()
        await sink.close()
    assert gzip.decompress(path.read_bytes()) == b"a,b\n1,2\n1,2\n"


@ENDINGS
async def test_lines_are_appended_where_they_can_be_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out.{ending}"
    whole = pack(b'{"n":1}\n{"n":2}', ending)
    sink = JsonLinesSink(path, existing="append")
    path.write_bytes(whole[:-5])
    with pytest.raises(SinkError, match="ends in the midst"):
        await sink.open()
    assert path.read_bytes() == whole[:-5]
    path.write_bytes(whole)
    await sink.open()
    await sink.write([{"n": 3}], None)
    await sink.flush()
    await sink.close()
    assert await read_on(JsonLinesSource(path)) == [{"n": 1}, {"n": 2}, {"n": 3}]


async def test_wrong_arguments_and_another_compression_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="compression: expected one of 'infer', 'gzip', 'zstd'"):
        JsonLinesSource("x", compression="bzip2")  # type: ignore[call-overload]
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(pack(LINES, "gz"))
    source = JsonLinesSource(path)
    await source.open()
    position = source.position()
    await source.close()
    with pytest.raises(SourceError, match="compression= is another one"):
        await JsonLinesSource(path, compression=None).can_seek(position)
