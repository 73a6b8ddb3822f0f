"""What `asyncstream run` says: where it begins, what is logged, and what went wrong."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import asyncstream
from asyncstream import DirectoryStore
from asyncstream.cli import main
from asyncstream.lease import Holder, enter, leave
from tests.said import besides_slowness

WORK = """
import logging
from asyncstream import JsonLinesSink, JsonLinesSource, Pipeline

def looks(event):
    logging.getLogger("mine").info("saw %d", event)
    if event == {bad}:
        raise ValueError("the message")
    return event

pipeline = Pipeline("job")
looked = pipeline.source(JsonLinesSource("in.jsonl"), name="in").map(looks, name="looks")
looked.to(JsonLinesSink("out.jsonl"), name="out")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_text("1\n2\n3\n")
    (tmp_path / "work.py").write_text(WORK.format(bad=0))
    return tmp_path


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "asyncstream", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, besides_slowness(done.stderr)


def test_run_says_from_which_checkpoint_it_goes_on(folder: Path) -> None:
    kept = ("run", "work:pipeline", "--checkpoints", "kept")
    status, said = run(folder, *kept)
    assert (status, said) == (
        0,
        "asyncstream: pipeline 'job' starts at the beginning, and keeps checkpoints in kept\n",
    )
    with (folder / "in.jsonl").open("a") as file:
        file.write("4\n")
    status, said = run(folder, *kept)
    assert status == 0
    assert said.startswith("asyncstream: pipeline 'job' goes on from checkpoint 2 of 20")
    assert said.endswith(", when all was finished\n")
    assert (folder / "out.jsonl").read_text() == "1\n2\n3\n4\n"


def test_a_pipeline_that_was_renamed_goes_on_if_that_is_said(folder: Path) -> None:
    kept = ("run", "work:pipeline", "--checkpoints", "kept")
    assert run(folder, *kept)[0] == 0
    (folder / "work.py").write_text(WORK.format(bad=0).replace('"job"', '"task"'))
    status, said = run(folder, *kept)
    assert status == 1
    assert said.endswith("asyncstream: options for that: --pipeline-was NAME\n")
    status, said = run(folder, *kept, "--pipeline-was", "job")
    assert status == 0
    assert said.startswith("asyncstream: pipeline 'task' goes on from checkpoint 2 of 20")


def test_a_job_that_is_still_there_is_waited_for_if_that_is_said(folder: Path) -> None:
    store, holder = DirectoryStore(folder / "kept"), Holder.here(0)
    enter(holder, lambda: True)
    try:
        lease = asyncio.run(store.acquire(holder, 60.0))
        kept = ("run", "work:pipeline", "--checkpoints", "kept")
        status, said = run(folder, *kept)
        assert status == 1
        assert said.endswith("on_held='wait' waits for that\nasyncstream: options for that: --on-held wait\n")
        asyncio.run(store.renew(lease, 1.0))
        assert run(folder, *kept, "--on-held", "wait")[0] == 0
    finally:
        leave(holder)
    assert (folder / "out.jsonl").read_text() == "1\n2\n3\n"


def test_checkpoints_are_where_the_command_was_typed_wherever_its_module_goes(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "in.jsonl").write_text("1\n")
    (folder / "work.py").write_text('import os; os.chdir("elsewhere")\n' + WORK.format(bad=0))
    assert run(folder, "run", "work:pipeline", "--checkpoints", "kept")[0] == 0
    assert (folder / "elsewhere" / "out.jsonl").exists()
    assert not (folder / "elsewhere" / "kept").exists()
    assert run(folder, "checkpoint", "show", "kept")[0] == 0


WAITING = """
from asyncstream import Pipeline

def make():
    pipeline = Pipeline("job")
    {body}
    return pipeline
"""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('pipeline.submissions(name="in").discard()', "step 'in': nobody can submit to a job"),
        (
            'pipeline.source([1], name="in").results(name="out")',
            "step 'out': nobody can take the results of a job",
        ),
    ],
)
def test_what_would_wait_for_who_has_the_job_is_refused(folder: Path, body: str, why: str) -> None:
    (folder / "waiting.py").write_text(WAITING.format(body=body))
    for more in ((), ("--checkpoints", "kept", "--max-restarts", "3")):
        status, said = run(folder, "run", "waiting:make", *more)
        assert (status, said.startswith(f"asyncstream: {why}")) == (1, True), said
    assert not (folder / "kept").exists()


def test_failure_is_one_line_and_with_v_a_traceback(folder: Path) -> None:
    (folder / "work.py").write_text(WORK.format(bad=2))
    expected = "asyncstream: step 'looks': ValueError: the message, on element 2\n"
    assert run(folder, "run", "work:pipeline") == (1, expected)
    for arguments in (("-v", "run", "work:pipeline"), ("run", "-v", "work:pipeline")):
        (folder / "out.jsonl").unlink(missing_ok=True)
        status, said = run(folder, *arguments)
        assert status == 1
        assert (
            said.count("Traceback (most recent call last)") == 2
        )  # of the function, and what names the step
        assert 'raise ValueError("the message")' in said
        assert said.endswith(expected)


EVIL = """
import logging
from asyncstream import Pipeline

def fails(event):
    logging.getLogger("mine").warning("saw %s", event)
    raise ValueError(event)

pipeline = Pipeline("job")
pipeline.source(["\\x1b[2J\\nasyncstream: all is well\\r"], name="in").map(fails, name="fails").discard()
"""


@pytest.mark.parametrize("verbose", [(), ("-v",)])
def test_what_an_element_holds_neither_moves_the_terminal_nor_looks_like_a_line_of_ours(
    folder: Path, verbose: tuple[str, ...]
) -> None:
    (folder / "work.py").write_text(EVIL)
    _, said = run(folder, *verbose, "run", "work:pipeline")
    told = "\\x1b[2J\n    asyncstream: all is well\\r"
    assert f"warning: mine: saw {told}\n" in said
    assert f"asyncstream: step 'fails': ValueError: {told}, on element" in said
    assert said.replace("\n", "").isprintable()


def test_failure_is_told_once_where_the_module_logs_by_itself(folder: Path) -> None:
    logs = "import logging\nlogging.basicConfig(filename='log', level='ERROR', format='%(message)s')\n"
    (folder / "work.py").write_text(logs + WORK.format(bad=2))
    status, said = run(folder, "run", "work:pipeline", "-v")
    assert status == 1
    assert said.count("Traceback") == 2
    assert "pipeline 'job' failed" not in said
    assert "pipeline 'job' failed" in (folder / "log").read_text()


@pytest.mark.parametrize(("level", "is_said"), [("info", True), ("warning", False), (None, False)])
def test_log_level_is_that_of_all_that_is_logged(folder: Path, level: str | None, is_said: bool) -> None:
    chosen = () if level is None else ("--log-level", level)
    arguments = ("run", "work:pipeline", "--checkpoints", "kept", *chosen)
    assert run(folder, *arguments)[0] == 0
    status, said = run(folder, *arguments)
    assert status == 0
    assert ("info: asyncstream.checkpoint: pipeline 'job' goes on" in said) is is_said
    (folder / "out.jsonl").unlink()
    status, said = run(folder, "run", "work:pipeline", *chosen)
    assert ("info: mine: saw 2\n" in said) is is_said


def test_error_of_the_module_is_told_with_its_place(folder: Path) -> None:
    (folder / "broken.py").write_text("import json\njson.loads('{')\n")
    status, said = run(folder, "run", "broken:pipeline")
    assert status == 1
    assert said.startswith("asyncstream: JSONDecodeError: Expecting property name")
    assert said.count("\n") == 1
    assert "; -v shows" in said
    status, said = run(folder, "describe", "broken:pipeline", "-v")
    assert status == 1
    assert "Traceback" in said
    assert "broken.py" in said


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"asyncstream {asyncstream.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--progress-every", "-1"), "--progress-every: expected a duration"),
        (("--progress-every", "soon"), "invalid seconds value: 'soon'"),
        (("--log-level", "loud"), "invalid choice: 'loud'"),
        (("--grace", "nan"), "--grace: expected a duration"),
    ],
)
def test_wrong_numbers_are_refused(
    arguments: tuple[str, ...],
    text: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "work", raising=False)
    try:
        status = main(["run", "work:pipeline", *arguments])
    except SystemExit as refused:  # by the parser
        status = int(refused.code or 0)
    assert status in (1, 2)
    assert text in capsys.readouterr().err
