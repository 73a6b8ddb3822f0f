"""What is shown of a run: rates and what is left, on a terminal and in a log."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

from asyncstream import Pipeline
from asyncstream.cli.progress import Meter, duration, showing_progress
from asyncstream.connectors.memory import Items
from asyncstream.runtime.aio import JobProgress, SourceProgress
from asyncstream.testing import VirtualTime
from tests.said import besides_slowness

WORK = """
import asyncio
from asyncstream import JsonLinesSink, JsonLinesSource, Pipeline

async def slowly(event):
    await asyncio.sleep(0.01)
    if event % 100 == 7:
        raise ValueError("on purpose")
    if event == 50:
        print("from a step")
    return event

pipeline = Pipeline("rows [of] work")
source = pipeline.source(JsonLinesSource("in.jsonl", batch=10), name="in")
slow = source.async_map(slowly, name="slow", concurrency=20, on_error="skip")
slow.to(JsonLinesSink("out.jsonl"), name="out")
"""

COUNT = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_text("".join(f"{number}\n" for number in range(COUNT)))
    (tmp_path / "work.py").write_text(WORK)
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "asyncstream", *arguments]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm", "COLUMNS": "100"}


def progress(read: int, share: float | None, in_flight: int = 0, failed: int = 0) -> JobProgress:
    return JobProgress((SourceProgress("in", read, share),), in_flight, failed)


# ---------------------------------------------------------------------- figures


def test_rate_and_what_is_left_are_of_what_is_finished() -> None:
    meter = Meter()
    first = meter.look(progress(0, 0.0), 100.0)
    assert (first.rows, first.rate, first.share, first.left) == (0, None, None, None)
    figures = meter.look(progress(300, 0.25, in_flight=100, failed=3), 102.0)
    assert (figures.rows, figures.in_flight, figures.failed, figures.seconds) == (200, 100, 3, 2.0)
    assert figures.rate == 100.0
    assert figures.share == pytest.approx(200 / 1200)
    assert figures.left == pytest.approx(10.0)
    assert figures.line() == "200 rows, 100/s, 100 in flight, 3 failed, 17%, 10 s left"
    assert figures.summary() == "200 rows in 2.0 s, 3 failed, 100 in flight"


def test_what_an_earlier_job_has_read_is_no_work_of_this_one() -> None:
    meter = Meter()
    meter.look(progress(0, 0.9), 0.0)
    figures = meter.look(progress(50, 0.95), 1.0)
    assert figures.left == pytest.approx(1.0)
    assert figures.share == pytest.approx(0.5)


def test_input_that_is_read_to_its_end_leaves_what_is_in_flight() -> None:
    meter = Meter()
    meter.look(progress(0, 0.0), 0.0)
    figures = meter.look(progress(100, 1.0, in_flight=50), 1.0)
    assert (figures.share, figures.left) == (0.5, 1.0)


def test_rate_is_that_of_the_last_seconds() -> None:
    meter = Meter()
    for second in range(100):
        figures = meter.look(progress(min(second, 50) * 100, None), float(second))
        if second == 50:
            assert figures.rate == 100.0
    assert figures.rate == 0.0
    assert figures.left is None


@pytest.mark.parametrize(
    "now",
    [
        progress(100, None),
        JobProgress((SourceProgress("in", 100, 0.5), SourceProgress("other", 100, None)), 0, 0),
        JobProgress((SourceProgress("in", 100, 0.5), SourceProgress("other", 0, 0.0)), 0, 0),
    ],
)
def test_end_is_not_guessed_where_a_source_does_not_know(now: JobProgress) -> None:
    meter = Meter()
    meter.look(
        JobProgress(tuple(SourceProgress(source.name, 0, 0.0) for source in now.sources), 0, 0),
        0.0,
    )
    figures = meter.look(now, 1.0)
    assert (figures.share, figures.left) == (None, None)
    assert "%" not in figures.line()


def test_several_sources_and_elements_that_were_restored() -> None:
    meter = Meter()
    before = JobProgress((SourceProgress("a", 0, 0.0), SourceProgress("b", 0, 0.5)), 30, 0)
    assert meter.look(before, 0.0).rows == 0
    now = JobProgress((SourceProgress("a", 100, 0.5), SourceProgress("b", 10, 1.0)), 10, 0)
    figures = meter.look(now, 1.0)
    assert (figures.rows, figures.rate) == (130, 130.0), "30 were restored, 110 read, 10 are left"
    assert figures.left == pytest.approx(110 / 130)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (10.0, "10 s"),
        (59.6, "1 min"),
        (80, "1 min 20 s"),
        (3600, "1 h"),
        (7385, "2 h 3 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_duration_is_told_in_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


async def test_job_that_stands_still_names_the_step_and_why_in_place_of_the_time_left(
    virtual_time: VirtualTime,
) -> None:
    async def hang_at_last(value: int) -> int:
        await asyncio.sleep(10_000 if value == 99 else 0.01)
        return value

    said: list[str] = []
    pipeline = Pipeline()
    pipeline.source(range(100), name="in").async_map(hang_at_last, name="price").discard()
    async with pipeline.start() as job:
        async with showing_progress(job, "work", 1.0, said.append):
            await virtual_time.advance(5.5)
        await job.stop()
    assert "stuck" not in said[0]
    why = "a call has not ended for 5 s; the step has no timeout="
    assert said[-2].endswith(f", stuck at step 'price': {why}")


class Lost(Items[int]):
    """A source that cannot say how far it is, from this look on."""

    def __init__(self, looks: int) -> None:
        super().__init__(range(3))
        self.looks = looks

    def progress(self) -> float:
        self.looks -= 1
        if self.looks < 0:
            raise ValueError("lost")
        return 0.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("looks", [0, 1, 2])
@pytest.mark.parametrize("on_terminal", [True, False])
async def test_progress_that_cannot_be_told_is_no_matter_of_the_job(
    looks: int, on_terminal: bool, virtual_time: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, said = Terminal(), list[str]()
    monkeypatch.setenv("TERM", "xterm")
    if on_terminal:
        monkeypatch.setattr("sys.stderr", terminal)

    async def wait(value: int) -> None:
        await asyncio.sleep(9)

    pipeline = Pipeline()
    pipeline.source(Lost(looks), name="in").async_map(wait).discard()
    async with pipeline.start() as job, showing_progress(job, "work", 1.0, said.append):
        await job.wait()
    assert said[-1] == "progress is not shown any more: SourceError: step 'in': ValueError: lost"
    drawn = terminal.getvalue()
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == on_terminal, "its cursor is there again"


# ---------------------------------------------------------------------- in a process


def test_log_gets_a_line_every_so_often_and_one_at_the_end(folder: Path) -> None:
    done = subprocess.run(
        command("run", "work:pipeline", "--progress-every", "0.1"),
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lines = without_warnings(done.stderr)
    assert len(lines) > 2
    assert all(line.startswith("asyncstream: ") for line in lines)
    assert " in flight, " in lines[0]
    assert any(line.endswith(" left") for line in lines[:-1])
    assert lines[-1].startswith(f"asyncstream: {COUNT:,} rows in ")
    assert lines[-1].endswith("10 failed")
    assert done.stdout == "from a step\n"


@pytest.mark.parametrize(("every", "rows", "says"), [("0", COUNT, False), ("60", 5, False), ("60", 10, True)])
def test_short_run_says_how_it_ended_if_something_failed(
    folder: Path, every: str, rows: int, says: bool
) -> None:
    (folder / "in.jsonl").write_text("".join(f"{number}\n" for number in range(rows)))  # 7 fails
    done = subprocess.run(
        command("run", "work:pipeline", "--progress-every", every),
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = without_warnings(done.stderr)
    assert (done.returncode, len(lines)) == (0, says), done.stderr
    assert all(line.startswith(f"asyncstream: {rows} rows in ") for line in lines)
    assert all(line.endswith(" s, 1 failed") for line in lines)


def without_warnings(stderr: str) -> list[str]:
    """What is said besides the step's warning of the elements that it skips, and of a busy machine."""
    lines = besides_slowness(stderr).splitlines()
    return [line for line in lines if not line.startswith("warning: asyncstream.elements: ")]


def on_terminal(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command whose stderr is a terminal; its status, what is on the terminal, and its stdout."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            command(*arguments), cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=theirs, text=True
        ) as process:
            os.close(theirs)
            drawn = b""
            while select.select([ours], [], [], 60)[0]:
                try:
                    piece = os.read(ours, 65536)
                except OSError:  # all who had it open are gone
                    break
                if not piece:
                    break
                drawn += piece
            out, _ = process.communicate(timeout=60)
            return process.returncode, drawn.decode(), out
    finally:
        os.close(ours)


def test_terminal_shows_a_bar_that_moves_and_what_came_of_it(folder: Path) -> None:
    status, drawn, out = on_terminal(folder, "run", "work:pipeline", "--checkpoints", "kept")
    assert status == 0, drawn
    assert "rows [of] work" in drawn
    assert drawn.count(" in flight, ") > 1
    assert "%" in drawn
    assert f"asyncstream: {COUNT:,} rows in " in drawn
    assert drawn.index("starts at the beginning") < drawn.index(" in flight, ")
    assert out == "from a step\n"  # it is no terminal, and nothing is drawn there


def test_terminal_shows_nothing_if_that_was_asked_for(folder: Path) -> None:
    status, drawn, _ = on_terminal(folder, "run", "work:pipeline", "--progress-every", "0")
    assert (status, without_warnings(drawn)) == (0, [])
