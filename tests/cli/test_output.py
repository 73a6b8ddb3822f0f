"""What becomes of a command whose output nobody reads, and of one that is interrupted."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import asyncstream.cli.checkpoints as checkpoints
from asyncstream.cli import main
from asyncstream.cli.commands import UNREAD

COMMAND = [sys.executable, "-m", "asyncstream"]


@contextmanager
def unread() -> Iterator[int]:
    """The writing end of a pipe that has no reading end any more."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [
        (("completion", "bash"), ""),
        (("completion", "bash"), "1"),
        (("describe", "work:pipeline"), ""),
        (("describe", "work:pipeline"), "1"),
        (("--help",), ""),  # argparse itself is content without
    ],
)
def test_command_that_nobody_reads_ends_without_a_word(
    tmp_path: Path, arguments: tuple[str, ...], unbuffered: str
) -> None:
    text = "from asyncstream import Pipeline\npipeline = Pipeline()\npipeline.source([1]).discard()\n"
    (tmp_path / "work.py").write_text(text)
    with unread() as output:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": unbuffered},
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (UNREAD, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no such device")
@pytest.mark.parametrize("arguments", [("completion", "bash"), ("--version",)])
def test_command_that_cannot_print_says_so_in_a_line(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": ""},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("asyncstream: OSError: [Errno 28] No space left on device")
    assert done.stderr.count("\n") == 1


def test_command_whose_stderr_is_closed_says_nothing_and_goes_on(tmp_path: Path) -> None:
    text = "from asyncstream import Pipeline\npipeline = Pipeline()\npipeline.source([1]).to(print)\n"
    (tmp_path / "work.py").write_text(text)
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *COMMAND, "run", "work:pipeline"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "1\n")


class Full(io.StringIO):
    """A file on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_run_goes_on_though_its_stderr_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from asyncstream import JsonLinesSink, JsonLinesSource, Pipeline\npipeline = Pipeline()\n"
    text += "source = pipeline.source(JsonLinesSource('in.jsonl'), name='in')\n"
    text += "source.to(JsonLinesSink('out.jsonl'), name='out')\n"
    (tmp_path / "silent.py").write_text(text)
    (tmp_path / "in.jsonl").write_text("1\n2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "stderr", Full())
    assert main(["run", "silent:pipeline", "--checkpoints", "kept"]) == 0
    assert (tmp_path / "out.jsonl").read_text() == "1\n2\n"
    (tmp_path / "out.jsonl").unlink()
    assert main(["-v", "run", "silent:pipeline", "--checkpoints", "kept"]) == 1


STUCK: Final = """
import threading, time
from asyncstream.runtime.aio import process
process._left.append(threading.Thread(target=time.sleep, args=(1000,)))
process._left[0].start()
print("unread")
process.leave(0)
"""


@pytest.mark.parametrize("closing", [">&-", ""], ids=["closed", "unread"])
def test_process_of_which_threads_are_left_ends_whatever_its_stdout_is(closing: str) -> None:
    with unread() as output:
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, "-c", STUCK],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": ""},
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_what_the_terminal_has_no_characters_for_is_written_with_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errors: str
) -> None:
    text = (
        "from asyncstream import Pipeline\npipeline = Pipeline('\\u00e9')\npipeline.source([1]).discard()\n"
    )
    (tmp_path / "accents.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", errors=errors))
    assert main(["describe", "accents:pipeline"]) == 0
    assert written.getvalue().startswith(rb"pipeline '\xe9'")


def test_broken_pipe_of_the_module_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "piping.py").write_text("raise BrokenPipeError('to the database')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["describe", "piping:pipeline"]) == 1
    assert "asyncstream: BrokenPipeError: to the database, raised in " in capsys.readouterr().err


def test_module_that_is_no_python_is_told_with_its_own_line_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "unfinished.py").write_text("def (\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["describe", "unfinished:pipeline"]) == 1
    told = "asyncstream: SyntaxError: invalid syntax (unfinished.py, line 1); -v shows how it came there\n"
    assert capsys.readouterr().err == told


def test_command_that_is_interrupted_says_so_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "store_of", interrupted)
    assert main(["checkpoint", "verify", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "asyncstream: stopped at once\n"
