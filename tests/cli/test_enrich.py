"""`asyncstream enrich`: rows of a file with the answers of a real server."""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from asyncstream.cli import main
from tests.said import besides_slowness


class Service(ThreadingHTTPServer):
    """
    Tells of a plane by its number; counts who asks for what.

    Attributes:
        answers: so many are given, and then none any more, until there may be more.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[str] = Counter()
        self.headers_seen: list[dict[str, str]] = []
        self.bodies: list[Any] = []
        self.answers: float = math.inf
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/planes"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone away in the middle of an answer is no matter of the service's."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Service

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            self.server.asked[name] += 1
            self.server.headers_seen.append(dict(self.headers.items()))
            if body:
                self.server.bodies.append(json.loads(body))
            number = self.server.asked.total()
        while number > self.server.answers:
            time.sleep(0.005)  # of a real server
        answer: Any = {"seats": len(name) * 10, "id": name}
        status = {"N404": 404, "N500": 500, "N400": 400}.get(name, 200)
        if name == "N1list":
            answer = [1, 2]
        data = json.dumps(answer if status == 200 else {}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        thread = threading.Thread(target=service.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield service
        service.shutdown()
        thread.join()


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "asyncstream", "enrich", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


Enrich = Callable[..., tuple[int, str]]


@pytest.fixture
def enrich(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Enrich:
    """The command in this process, in the test's folder: its status, and what it says."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        return main(["enrich", *arguments]), besides_slowness(capsys.readouterr().err)

    return run


def rows_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_csv_becomes_json_lines_in_order(tmp_path: Path, service: Service, enrich: Enrich) -> None:
    (tmp_path / "in.csv").write_text("id,color\nN1,red\nN22,blue\nN404,none\n")
    status, said = enrich(
        "in.csv", "--url", service.url + "/{id}", "--concurrency", "3", "--out", "out.jsonl"
    )
    assert (status, said) == (0, "")
    assert rows_of(tmp_path / "out.jsonl") == [
        {"id": "N1", "color": "red", "seats": 20},
        {"id": "N22", "color": "blue", "seats": 30},
        {"id": "N404", "color": "none"},
    ]


def test_json_lines_become_csv_with_the_columns_of_the_first(
    tmp_path: Path, service: Service, enrich: Enrich
) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": "N1"}\n{"id": "N404"}\n{"id": "N22"}\n')
    assert enrich("in.jsonl", "--url", service.url + "/{id}", "--out", "out.csv") == (0, "")
    assert (tmp_path / "out.csv").read_text() == "id,seats\nN1,20\nN404,\nN22,30\n"
    arguments = ("in.jsonl", "--url", service.url + "/{id}", "--out", "out.tsv", "--columns", "seats,id")
    assert enrich(*arguments) == (0, "")
    assert (tmp_path / "out.tsv").read_text() == "seats\tid\n20\tN1\n\tN404\n30\tN22\n"


def test_answer_goes_into_one_column(tmp_path: Path, service: Service, enrich: Enrich) -> None:
    (tmp_path / "in.csv").write_text("id\nN1\nN404\nN1list\n")
    arguments = ("in.csv", "--url", service.url + "/{id}", "--into", "plane")
    assert enrich(*arguments, "--out", "out.jsonl") == (0, "")
    assert rows_of(tmp_path / "out.jsonl") == [
        {"id": "N1", "plane": {"seats": 20, "id": "N1"}},
        {"id": "N404", "plane": None},
        {"id": "N1list", "plane": [1, 2]},
    ]
    assert enrich(*arguments, "--out", "out.csv") == (0, "")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert next(iter(csv.DictReader(file))) == {"id": "N1", "plane": '{"seats":20,"id":"N1"}'}


def test_parquet_is_read_and_written(tmp_path: Path, service: Service, enrich: Enrich) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in.csv").write_text("id\nN1\nN404\nN22\n")
    expected = [{"id": "N1", "seats": 20}, {"id": "N404", "seats": None}, {"id": "N22", "seats": 30}]
    url = ("--url", service.url + "/{id}")
    assert enrich("in.csv", *url, "--out", "out.parquet") == (0, "")
    assert (tmp_path / "out.parquet").is_file()
    assert parquet.read_table(tmp_path / "out.parquet").to_pylist() == expected
    status, said = enrich("out.parquet", *url, "--out", "parts.parquet", "--resume", "state")
    assert status == 0, said
    assert parquet.read_table(tmp_path / "parts.parquet").to_pylist() == expected
    assert enrich("parts.parquet", *url, "--out", "out.jsonl") == (0, "")
    assert rows_of(tmp_path / "out.jsonl") == expected
    status, said = enrich("out.parquet", "--url", service.url + "/{none}", "--out", "o.jsonl")
    assert (status, "no column 'none'; it has: id, seats" in said) == (1, True)


def test_a_row_of_parquet_that_is_nothing_in_python_goes_aside(
    tmp_path: Path, service: Service, enrich: Enrich
) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    days = arrow.array([0, 2**30, 1], arrow.date32())
    parquet.write_table(arrow.table({"id": ["N1", "N22", "N333"], "day": days}), tmp_path / "in.parquet")
    url = ("--url", service.url + "/{id}")
    status, said = enrich("in.parquet", *url, "--out", "none.jsonl")
    assert (status, "row 2 of in.parquet: column 'day'" in said) == (1, True)
    assert said.endswith("--failed FILE writes rows that fail there, and goes on with the others\n")
    status, said = enrich("in.parquet", *url, "--out", "out.jsonl", "--failed", "failed.jsonl")
    assert (status, said[:20], said[-9:]) == (0, "asyncstream: 2 rows ", "1 failed\n"), said
    assert [row["id"] for row in rows_of(tmp_path / "out.jsonl")] == ["N1", "N333"]
    (failed,) = rows_of(tmp_path / "failed.jsonl")
    assert (failed["row_number"], failed["row"]) == (2, {"id": "N22"})


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_that_are_named_are_empty_where_a_row_has_none(
    tmp_path: Path, service: Service, enrich: Enrich, ending: str
) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / "in.csv").write_text("id\nN404\nN22\n")
    arguments = ("in.csv", "--url", service.url + "/{id}")
    assert enrich(*arguments, "--out", f"out.{ending}", "--columns", "id,seats") == (0, "")
    assert enrich(f"out.{ending}", *arguments[1:], "--out", "again.jsonl", "--into", "x") == (0, "")
    written = [(row["id"], row["seats"] or None) for row in rows_of(tmp_path / "again.jsonl")]
    assert written == [("N404", None), ("N22", "30" if ending == "csv" else 30)]


def test_columns_that_the_first_row_has_not_are_told_of_with_what_to_do(
    tmp_path: Path, service: Service, enrich: Enrich
) -> None:
    (tmp_path / "in.csv").write_text("id\nN404\nN22\n")
    status, said = enrich("in.csv", "--url", service.url + "/{id}", "--out", "out.csv")
    assert (status, "there is no column for 'seats'" in said) == (1, True)
    assert said.endswith(
        "--columns A,B,... names the columns of OUT; without it they are those of the first row\n"
    )


def test_lines_may_be_compressed(tmp_path: Path, service: Service, enrich: Enrich) -> None:
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(b"id\nN1\nN22\n"))
    url = ("--url", service.url + "/{id}")
    assert enrich("in.csv.gz", *url, "--out", "out.jsonl.gz") == (0, "")
    lines = gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()).splitlines()
    assert list(map(json.loads, lines)) == [{"id": "N1", "seats": 20}, {"id": "N22", "seats": 30}]
    status, said = enrich("in.csv.gz", "--url", service.url + "/{none}", "--out", "o.jsonl")
    assert (status, "no column 'none'; it has: id" in said) == (1, True)
    (tmp_path / "in.csv.gz").write_bytes(b"id\nN1\n")
    status, said = enrich("in.csv.gz", *url, "--out", "o.jsonl")
    assert (status, "cannot read in.csv.gz: OSError: damaged gzip data" in said) == (1, True)


def test_the_columns_of_a_file_may_stand_behind_empty_lines(
    tmp_path: Path, service: Service, enrich: Enrich
) -> None:
    (tmp_path / "in.csv").write_text("\n\r\nid,color\nN1,red\n")
    url = ("--url", service.url + "/{id}")
    assert enrich("in.csv", *url, "--out", "out.jsonl")[0] == 0
    assert rows_of(tmp_path / "out.jsonl") == [{"id": "N1", "color": "red", "seats": 20}]


def test_failure_ends_the_run_and_tells_of_the_way_out(
    tmp_path: Path, service: Service, enrich: Enrich
) -> None:
    (tmp_path / "in.csv").write_text("id\nN400\n")
    status, said = enrich("in.csv", "--url", service.url + "/{id}", "--out", "out.jsonl")
    assert status == 1
    assert "/planes/N400: 400 Bad Request" in said
    assert "element {'id': 'N400'}" in said
    way_out = "asyncstream: --failed FILE writes rows that fail there, and goes on with the others\n"
    assert said.endswith(way_out)
    (tmp_path / "in.csv").write_text("id\nN1,red\n")
    status, said = enrich("in.csv", "--url", service.url + "/{id}", "--out", "none.jsonl")
    assert (status, "in.csv, line 2: 2 fields instead of 1" in said) == (1, True)
    assert said.endswith(way_out)
    odd = "on_malformed='reject'.csv"  # which a line that is none names
    for written in ("in.csv", odd):
        (tmp_path / written).write_text("id,id\nN1,N2\n")  # for which it is none
        status, said = enrich(written, "--url", service.url + "/{id}", "--out", f"of {written}.jsonl")
        assert (status, said.endswith("the header names 'id' more than once\n")) == (1, True)


def test_rows_that_fail_go_aside_and_so_do_lines_that_are_no_rows(
    tmp_path: Path, service: Service, enrich: Enrich
) -> None:
    (tmp_path / "in.csv").write_text("id,color\nN1,red\nN500,blue\nN3\nN1list,red\nN22,red\n")
    arguments = ("in.csv", "--url", service.url + "/{id}", "--attempts", "2", "--failed", "failed.jsonl")
    status, said = enrich(*arguments, "--out", "out.jsonl")
    assert (status, said[:20], said[-9:]) == (0, "asyncstream: 4 rows ", "3 failed\n"), said
    assert [row["id"] for row in rows_of(tmp_path / "out.jsonl")] == ["N1", "N22"]
    assert service.asked["N500"] == 2
    failed = rows_of(tmp_path / "failed.jsonl")
    by_row = {str(letter.get("value", letter.get("line_number"))): letter for letter in failed}
    assert by_row["{'id': 'N500', 'color': 'blue'}"]["attempts"] == 2
    assert "--into gives it a column" in by_row["{'id': 'N1list', 'color': 'red'}"]["error"]
    assert by_row["4"]["line"] == "N3"


def test_row_that_is_not_utf_8_goes_aside(tmp_path: Path, service: Service, enrich: Enrich) -> None:
    (tmp_path / "in.csv").write_bytes("id,town\nN1,Rom\nN22,M\u00fcnchen\n".encode("latin-1"))
    arguments = ("in.csv", "--url", service.url + "/{id}", "--out", "out.jsonl")
    status, said = enrich(*arguments)
    assert (status, "in.csv, line 3: not UTF-8" in said) == (1, True)
    assert enrich(*arguments, "--failed", "failed.jsonl", "--overwrite")[0] == 0
    assert [row["id"] for row in rows_of(tmp_path / "out.jsonl")] == ["N1"]
    (failed,) = rows_of(tmp_path / "failed.jsonl")
    assert (failed["line_number"], failed["reason"][:9]) == (3, "not UTF-8")


def test_request_is_as_asked_for(tmp_path: Path, service: Service, enrich: Enrich) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": "N1", "n": 1}\n{"id": "N1", "n": 1}\n')
    (tmp_path / "secret").write_text("Authorization: Bearer of/tidings\n\nX-Two: 2\n")
    sent = ("--send-row", "--header", "X-One: 1", "--header", "@secret")
    status, said = enrich("in.jsonl", "--url", service.url, *sent, "--out", "out.jsonl")
    assert (status, said) == (0, "")
    assert service.bodies == [{"id": "N1", "n": 1}] * 2
    seen = service.headers_seen[0]
    assert (seen["X-One"], seen["X-Two"], seen["Authorization"]) == ("1", "2", "Bearer of/tidings")
    cached = ("--cache", "60", "--rate", "1000", "--order", "unordered", "--overwrite")
    status, said = enrich("in.jsonl", "--url", service.url + "/{id}", *cached, "--out", "out.jsonl")
    assert (status, said) == (0, "")
    assert service.asked["N1"] == 1
    assert len(rows_of(tmp_path / "out.jsonl")) == 2


def test_killed_run_is_resumed_and_every_row_is_there_once(
    tmp_path: Path, service: Service, enrich: Enrich
) -> None:
    count = 400
    service.answers = count / 2
    (tmp_path / "in.csv").write_text("id\n" + "".join(f"N{number}x\n" for number in range(count)))
    arguments = ("in.csv", "--url", service.url + "/{id}", "--concurrency", "10", "--out", "out.csv")
    resume = (*arguments, "--resume", "state", "--every", "0.05")
    process = start(tmp_path, *resume)
    until = time.monotonic() + 60
    while service.asked.total() <= service.answers and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    service.answers = math.inf
    status, said = enrich(*resume)
    assert status == 0, said
    assert "goes on from checkpoint" in said
    assert service.asked.total() < 2 * count
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == [f"N{number}x" for number in range(count)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("none.csv", "--url", "http://x/{id}", "--out", "o.jsonl"), "there is no file none.csv"),
        (
            ("pipe.csv", "--url", "http://x/{id}", "--out", "o.jsonl"),
            "pipe.csv is a pipe or a device, not a file",
        ),
        (
            ("folder.csv", "--url", "http://x/{id}", "--out", "o.jsonl"),
            "folder.csv is a directory, not a file",
        ),
        (("latin.csv", "--url", "http://x/{id}", "--out", "o.jsonl"), "latin.csv: its header is not UTF-8"),
        (("in.csv", "--url", "http://x/{idd}", "--out", "o.jsonl"), "no column 'idd'; it has: id, color"),
        (("in.csv", "--url", "http://x/{}", "--out", "o.jsonl"), "the name of a column between"),
        (("in.csv", "--url", "http://x/all", "--out", "o.jsonl"), "without one, all requests are the same"),
        (("in.csv", "--url", "http://x/{id", "--out", "o.jsonl"), "--url: expected '}'"),
        (("in.csv", "--url", "http://x/{id}", "--out", "o.xls"), "--out-format: csv, tsv, jsonl, parquet"),
        (("in.csv", "--url", "http://x/{id}", "--out", "in.csv"), "is the file to read"),
        (("in.csv", "--url", "http://x/{id}", "--out", "symlink.csv", "--overwrite"), "is the file to read"),
        (("in.csv", "--url", "http://x/{id}", "--out", "hardlink.csv", "--overwrite"), "is the file to read"),
        (("in.csv", "--url", "http://x/{id}", "--out", "o.jsonl", "--failed", "./o.jsonl"), "are one file"),
        (("in.csv", "--url", "http://x/{id}", "--out", "o.jsonl", "--failed", ""), "--failed: expected"),
        (("in.csv", "--url", "http://x/{id}", "--out", "there.jsonl"), "--overwrite replaces it"),
        (("in.csv", "--url", "http://x/{id}", "--out", "o.jsonl", "--header", "a"), "expected 'Name: value'"),
        (
            ("in.csv", "--url", "http://x/{id}", "--out", "o.jsonl", "--header", "@no"),
            "--header: FileNotFound",
        ),
        (
            ("in.csv", "--url", "http://x/{id}", "--out", "o.jsonl", "--concurrency", "0"),
            "--concurrency: expected",
        ),
        (
            ("in.csv", "--url", "http://x/{id}", "--out", "o.jsonl", "--rate", "0"),
            "--rate: expected an integer of at least 1, got 0\n",
        ),
        (("in.csv", "--url", "http://x/{id}", "--out", "o.jsonl", "--cache", "0"), "--cache: expected"),
        (("in.csv", "--url", "http://x/{id}", "--out", "o.jsonl", "--max-restarts", "1"), "needs --resume"),
        (("in.csv", "--url", "http://x/{id}", "--out", "o.csv", "--columns", "a,a"), "different names"),
        (
            ("in.csv", "--url", "http://x/{id}", "--out", "o.csv", "--columns", ""),
            "--columns: expected names",
        ),
        (("in.csv", "--url", "http://x/{id}", "--out", "o.csv", "--columns", "a,"), "got 'a,'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(
    tmp_path: Path, enrich: Enrich, arguments: tuple[str, ...], text: str
) -> None:
    (tmp_path / "in.csv").write_text("id,color\n1,red\n")
    (tmp_path / "there.jsonl").write_text("")
    (tmp_path / "symlink.csv").symlink_to("in.csv")
    (tmp_path / "hardlink.csv").hardlink_to(tmp_path / "in.csv")
    (tmp_path / "latin.csv").write_bytes(b"id,caf\xe9\n1,red\n")
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    before = {path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}
    status, said = enrich(*arguments)
    assert status == 1
    assert text in said
    assert {path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()} == before
