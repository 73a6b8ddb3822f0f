"""`--dashboard`: the job of a process on a page, which leaves the process as it is."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncstream.cli import main

WORK = """
import asyncio
from asyncstream import JsonLinesSink, JsonLinesSource, Pipeline

async def slowly(event):
    await asyncio.sleep(0.01)
    return event

pipeline = Pipeline("shown")
source = pipeline.source(JsonLinesSource("in.jsonl", batch=10), name="in")
slow = source.async_map(slowly, name="slow", concurrency=2)
slow.to(JsonLinesSink("out.jsonl"), name="out")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_text("1\n" * 100_000)
    (tmp_path / "work.py").write_text(WORK)
    return tmp_path


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A run with a dashboard, and the port of that."""
    with subprocess.Popen(
        [sys.executable, "-m", "asyncstream", "run", "work:pipeline", "--dashboard", "0", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"dashboard at http://127\.0\.0\.1:(\d+)/", process.stderr.readline())
            assert found is not None
            yield process, int(found[1])
        finally:
            process.kill()


def get(port: int, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(
            "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_page_and_status_are_served_and_a_signal_ends_it_in_time_with_somebody_watching(folder: Path) -> None:
    with running(folder, "--checkpoints", "kept") as (process, port):
        status, page = get(port, "/")
        assert (status, "<html" in page) == (200, True)
        status, text = get(port, "/status")
        assert status == 200
        shown = json.loads(text)
        assert shown["name"] == "shown"
        assert [step["name"] for step in shown["steps"]] == ["in", "slow", "out"]
        assert get(port, "/nowhere")[0] == 404
        assert get(port, "/status", Host="rebound.example.com")[0] == 403
        assert get(port, "/status", Host="[::1")[0] == 403
        assert get(port, "/status", Host="localhost:many")[0] == 403
        assert get(port, "/status", Host=f"localhost:{port + 1}")[0] == 200
        watching = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        watching.request("GET", "/status/events")
        events = watching.getresponse()
        assert events.getheader("Content-Type", "").startswith("text/event-stream")
        assert events.getheader("Content-Security-Policy", "").startswith("default-src 'none'")
        seen = events.readline()
        while b'"state":"running"' not in seen:
            seen = events.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert b'"state":"stopped"' in events.read()
        watching.close()


def test_token_is_asked_for(folder: Path) -> None:
    (folder / "token").write_text("s3cret\n")
    with running(folder, "--dashboard-token-file", "token") as (_, port):
        assert get(port, "/status")[0] == 401
        assert get(port, "/status", Authorization="Bearer s3cret")[0] == 200
        assert get(port, "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--dashboard", "70000"), "--dashboard: expected a port between 0 and 65535, got 70000"),
        (("--dashboard-token-file", "x"), "give --dashboard PORT as well"),
        (("--dashboard", "0", "--dashboard-token-file", "none"), "--dashboard-token-file: FileNotFoundError"),
        (("--dashboard", "0", "--dashboard-token-file", "empty"), "expected a token in one line"),
    ],
)
def test_what_cannot_be_is_refused(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    text: str,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "work", raising=False)
    (folder / "empty").write_text("\n")
    assert main(["run", "work:pipeline", *arguments]) == 1
    assert text in capsys.readouterr().err
    assert not (folder / "out.jsonl").exists()


def test_port_that_is_taken_is_refused_before_anything_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "work", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["run", "work:pipeline", "--dashboard", port]) == 1
    assert f"--dashboard {port}: OSError" in capsys.readouterr().err
    assert not (folder / "out.jsonl").exists()
