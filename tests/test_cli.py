"""The command line, mostly in processes of its own, since signals are for processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asyncstream import Checkpoints, DirectoryStore, Pipeline, SqliteStore
from asyncstream.checkpoint import directory
from asyncstream.cli import main
from asyncstream.codec import JsonCodec
from asyncstream.filesystem.folders import contents
from tests.said import besides_slowness

MODULE = """
import asyncio, os
from asyncstream import JsonLinesSink, JsonLinesSource, Pipeline

async def slowly(event):
    await asyncio.sleep({seconds})
    while event == {last} and os.path.exists("wait"):
        await asyncio.sleep(0.01)
    return event

def build():
    pipeline = Pipeline("job")
    source = pipeline.source(JsonLinesSource("in.jsonl", batch=10), name="in")
    source.async_map(slowly, name="slow", concurrency=5).to(JsonLinesSink("out.jsonl"), name="out")
    return pipeline

async def later():
    return build()

made = build()
nothing = 7
"""

COUNT = 3000
"""Elements: more than inboxes hold, so that a signal comes while there is more to read."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_text("".join(f"{number}\n" for number in range(COUNT)))
    write_module(tmp_path, 0.002)
    return tmp_path


def write_module(folder: Path, seconds: float) -> None:
    """One whose calls take so long; the last one waits as long as there is a file "wait"."""
    (folder / "work.py").write_text(MODULE.format(seconds=seconds, last=COUNT - 1))


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "asyncstream", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=60)
    return process.returncode, out, besides_slowness(errors)


def written(folder: Path) -> list[int]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def wait_until_it_runs(folder: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if any(file.name > "00000001.checkpoint" for file in (folder / "kept").glob("0*.checkpoint")):
            return
        time.sleep(0.01)
    raise AssertionError("it did not take a checkpoint")


def test_run_comes_to_its_end(folder: Path) -> None:
    status, _, errors = finish(start(folder, "run", "work:build"))
    assert (status, errors) == (0, "")
    assert written(folder) == list(range(COUNT))


def test_checkpoint_with_which_a_run_ends_may_be_a_savepoint(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, errors = finish(start(folder, "run", "work:build", "--checkpoints", "kept", "--savepoint"))
    assert status == 0, errors
    assert main(["checkpoint", "list", str(folder / "kept")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("  finished  savepoint")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_gracefully_and_the_next_run_goes_on(folder: Path, number: signal.Signals) -> None:
    run = ("run", "work:made", "--checkpoints", "kept", "--every", "0.05")
    (folder / "wait").touch()
    process = start(folder, *run)
    wait_until_it_runs(folder)
    process.send_signal(number)
    status, _, errors = finish(process)
    assert status == 0, errors
    assert "stopping" in errors
    before = written(folder)
    assert before == list(range(len(before)))
    assert 0 < len(before) < COUNT
    (folder / "wait").unlink()
    status, _, errors = finish(start(folder, *run))
    assert status == 0, errors
    assert written(folder) == list(range(COUNT))


def test_second_signal_stops_at_once_and_nothing_is_lost(folder: Path) -> None:
    write_module(folder, 20)
    run = ("run", "work:build", "--checkpoints", "kept", "--every", "0.05")
    process = start(folder, *run)
    wait_until_it_runs(folder)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert any("stopping" in line for line in process.stderr)  # of two that come at once either may be first
    process.send_signal(signal.SIGINT)
    status, _, errors = finish(process)
    assert status == 128 + signal.SIGINT, errors
    assert "at once" in errors
    write_module(folder, 0)
    status, _, errors = finish(start(folder, *run))
    assert status == 0, errors
    assert written(folder) == list(range(COUNT))


FAILING = """
from pathlib import Path
from asyncstream import JsonLinesSink, JsonLinesSource, Pipeline

def fail_at_times(event):
    attempts = Path("attempts")
    if event == 1500 and (not attempts.exists() or len(attempts.read_text()) < {times}):
        with attempts.open("a") as file:
            file.write(".")
        raise ConnectionError("gone")
    return event

pipeline = Pipeline("job")
source = pipeline.source(JsonLinesSource("in.jsonl", batch=10), name="in")
source.map(fail_at_times, name="fail").to(JsonLinesSink("out.jsonl"), name="out")
"""


def test_failures_are_followed_by_so_many_restarts(folder: Path) -> None:
    (folder / "work.py").write_text(FAILING.format(times=1))
    run = ("run", "work:pipeline", "--checkpoints", "kept", "--max-restarts", "1")
    status, _, errors = finish(start(folder, *run))
    assert status == 0, errors
    assert written(folder) == list(range(COUNT))
    (folder / "work.py").write_text(FAILING.format(times=10))
    (folder / "attempts").unlink()
    status, _, errors = finish(start(folder, *run, "--restore", "none"))
    assert status == 1, errors


def test_signal_ends_the_pause_before_a_restart(folder: Path) -> None:
    (folder / "work.py").write_text(FAILING.format(times=1000))
    process = start(folder, "run", "work:pipeline", "--checkpoints", "kept", "--max-restarts", "1000")
    until = time.monotonic() + 60
    while not (folder / "attempts").exists() or len((folder / "attempts").read_text()) < 3:
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    status, _, errors = finish(process)
    assert status == 1, errors
    assert "gone" in errors


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--max-restarts", "2"), "needs --checkpoints"),
        (("--max-restarts", "-1", "--checkpoints", "kept"), "--max-restarts"),
        (("--restarts-within", "60", "--checkpoints", "kept"), "give --max-restarts"),
        (("--restore", "3"), "--restore needs --checkpoints"),
        (("--every", "10"), "--every needs --checkpoints"),
        (("--keep", "3"), "--keep needs --checkpoints"),
        (("--ahead", "refuse"), "--ahead needs --checkpoints"),
        (("--savepoint",), "--savepoint needs --checkpoints"),
        (("--allow-dropped", "old"), "--allow-dropped needs --checkpoints"),
        (("--renamed", "old=new"), "--renamed needs --checkpoints"),
        (("--key-file", "key"), "--key-file needs --checkpoints"),
        (("--dry-run",), "--dry-run needs --checkpoints"),
    ],
)
def test_options_that_say_nothing_without_others_are_refused(
    arguments: tuple[str, ...],
    text: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "work", raising=False)
    assert main(["run", "work:build", *arguments]) == 1
    assert text in capsys.readouterr().err


def test_without_checkpoints_a_signal_drains(folder: Path) -> None:
    process = start(folder, "run", "work:build")
    until = time.monotonic() + 60
    while not (folder / "out.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    status, _, errors = finish(process)
    assert status == 0, errors
    assert written(folder) == list(range(len(written(folder))))


def test_describe_shows_steps_and_guarantees(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.delitem(sys.modules, "work", raising=False)
    assert main(["describe", "work:build"]) == 0
    text = capsys.readouterr().out
    assert "async_map" in text
    assert "in -> out  exactly once" in text
    assert main(["describe", "work:made", "--mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart")
    monkeypatch.delitem(sys.modules, "work")


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("work", "module:name"),
        ("nowhere_at_all:x", "no module"),
        ("work.py:made", "there is no module 'work.py'; if that is a file: work:made"),
        ("./work:made", "module:name, with the module as it is imported, got './work:made'"),
        ("work:absent", "module 'work' has no 'absent'; its pipelines: made\n"),
        ("work:nothing", "work:nothing is not a Pipeline, but of type int"),
        ("work:later", "work:later is an async def; only a plain function can make the Pipeline"),
        ("work:slowly", "work:slowly must make a Pipeline without arguments: missing"),
        ("builtins:max", "builtins:max must make a Pipeline without arguments: no signature found"),
    ],
)
def test_wrong_target_is_explained(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    text: str,
) -> None:
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.delitem(sys.modules, "work", raising=False)
    assert main(["describe", target]) == 1
    assert text in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "work", raising=False)


# ---------------------------------------------------------------------- checkpoints


def kept(path: Path, store: DirectoryStore | SqliteStore) -> str:
    async def same(value: int) -> int:
        return value

    pipeline = Pipeline("kept")
    pipeline.source([1, 2], name="numbers").async_map(same, name="call").to([], name="list")
    asyncio.run(pipeline.run(checkpoints=Checkpoints(store=store)))
    return str(path)


@pytest.mark.parametrize("kind", [DirectoryStore, SqliteStore])
def test_checkpoints_are_listed_shown_and_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: type[DirectoryStore]
) -> None:
    path = kept(tmp_path / "kept", kind(tmp_path / "kept"))
    assert main(["checkpoint", "list", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[-1].endswith("kept  finished")
    assert main(["checkpoint", "show", path]) == 0
    shown = capsys.readouterr().out
    assert "checkpoint 2 of pipeline 'kept'" in shown
    assert "async_map" in shown
    assert main(["checkpoint", "show", path, "1"]) == 0
    assert "checkpoint 1 " in capsys.readouterr().out
    assert main(["checkpoint", "verify", path]) == 0
    assert capsys.readouterr().out.count("whole") == 2


def test_of_many_checkpoints_one_is_read_to_be_shown_and_each_once_to_be_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept(tmp_path / "kept", DirectoryStore(tmp_path / "kept"))
    read: list[str] = []

    def noted(file: Path) -> bytes:
        read.append(file.name)
        return contents(file)

    monkeypatch.setattr(directory, "contents", noted)
    manifests = [f"{number:08}.checkpoint" for number in (1, 2)]
    for asked, expected in (
        (["list"], manifests),
        (["show"], manifests[1:]),
        (["show", "1"], manifests[:1]),
    ):
        read.clear()
        assert main(["checkpoint", asked[0], path, *asked[1:]]) == 0
        assert [name for name in read if not name.startswith("lease")] == expected
    capsys.readouterr()


def test_store_without_a_checkpoint_is_none_that_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = f"asyncstream: there is no checkpoint in {tmp_path}\n"
    for command, status in (("list", 0), ("verify", 1), ("show", 1)):
        assert main(["checkpoint", command, str(tmp_path)]) == status
        assert capsys.readouterr().err == expected


def test_damage_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = kept(tmp_path / "kept", DirectoryStore(tmp_path / "kept"))
    newest = tmp_path / "kept" / "00000002.checkpoint"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert main(["checkpoint", "verify", path]) == 1
    assert "2  damaged: it has" in capsys.readouterr().out
    assert main(["checkpoint", "list", path]) == 0
    capsys.readouterr()
    assert main(["checkpoint", "show", path]) == 1
    assert capsys.readouterr().err.startswith("asyncstream: checkpoint 2 is damaged: it has ")
    assert main(["checkpoint", "show", path, "9"]) == 1
    assert main(["checkpoint", "list", str(tmp_path / "nowhere")]) == 1
    assert "there is nothing at" in capsys.readouterr().err


def test_a_store_out_of_reach_is_told_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / ("long" * 100))
    assert main(["checkpoint", "list", path]) == 1
    assert capsys.readouterr().err.startswith(f"asyncstream: {path} cannot be read: OSError: ")


def test_parts_and_the_lease_are_shown_and_damage_of_a_part_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def never(value: str) -> str:
        await asyncio.sleep(3600)
        return value

    async def main() -> None:
        pipeline = Pipeline("kept")
        pipeline.submissions(name="in").async_map(never, name="call").to([], name="list")
        checkpoints = Checkpoints(store=DirectoryStore(tmp_path / "kept"), inline_bytes=100)
        async with pipeline.start(checkpoints=checkpoints) as job:
            await job.submit("x" * 1000)
            await job.checkpoint()
            await job.stop()

    asyncio.run(main())
    path = str(tmp_path / "kept")
    assert main_of("show", path) == 0
    shown = capsys.readouterr().out
    [part] = (tmp_path / "kept").glob("part-*")
    assert part.name.removeprefix("part-") in shown
    assert f"lease     1; now lease 1, of process {os.getpid()} on" in shown
    assert main_of("verify", path) == 0
    part.write_bytes(b"?" + part.read_bytes()[1:])
    capsys.readouterr()
    assert main_of("verify", path) == 1
    assert "2  damaged: its part" in capsys.readouterr().out


def main_of(*arguments: str) -> int:
    return main(["checkpoint", *arguments])


def test_dry_run_says_what_a_run_would_go_on_from(folder: Path) -> None:
    assert finish(start(folder, "run", "work:build", "--checkpoints", "kept"))[0] == 0
    arguments = ("run", "work:build", "--checkpoints", "kept", "--dry-run")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (folder / "kept").iterdir()}
    status, out, errors = finish(start(folder, *arguments))
    assert (status, errors) == (0, "")
    assert out.startswith("pipeline 'job' would go on from checkpoint 2\n")
    status, out, _ = finish(start(folder, *arguments, "--restore", "none"))
    assert status == 1
    assert "refused: step 'out'" in out
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (folder / "kept").iterdir()}
    assert after == before


def test_dry_run_logs_as_a_run_does(folder: Path) -> None:
    assert finish(start(folder, "run", "work:build", "--checkpoints", "kept"))[0] == 0
    (folder / "kept" / "00000002.checkpoint").write_bytes(b"damaged")
    run = ("run", "work:build", "--checkpoints", "kept", "--dry-run")
    status, out, errors = finish(start(folder, *run))
    assert (status, out.splitlines()[0]) == (0, "pipeline 'job' would go on from checkpoint 1")
    assert errors.startswith("warning: asyncstream.")
    assert "Traceback" not in errors
    assert finish(start(folder, *run, "--log-level", "critical"))[2] == ""


def test_step_has_another_name_or_is_gone(folder: Path) -> None:
    run = ("run", "work:build", "--checkpoints", "kept")
    assert finish(start(folder, *run))[0] == 0
    module = (folder / "work.py").read_text()
    (folder / "work.py").write_text(module.replace('name="slow"', 'name="calm"'))
    status, _, errors = finish(start(folder, *run))
    assert status == 1
    assert "does not have: 'slow'; say what they are called now, renamed={old: new}" in errors
    ways_out = "asyncstream: options for that: --renamed OLD=NEW, --allow-dropped STEP\n"
    assert errors.endswith(ways_out)
    status, out, errors = finish(start(folder, *run, "--dry-run"))
    assert (status, out.splitlines()[0], "from nothing" in out) == (1, "pipeline 'job' cannot start", False)
    assert errors == ways_out
    status, out, _ = finish(start(folder, *run, "--renamed", "slow=calm", "--dry-run"))
    assert (status, "operator  calm  kept" in out) == (0, True)
    status, out, errors = finish(start(folder, *run, "--allow-dropped", "slow", "--dry-run"))
    assert (status, "operator  slow  dropped" in out, errors) == (0, True, "")
    status, _, errors = finish(start(folder, *run, "--renamed", "calm", "--dry-run"))
    assert (status, errors) == (1, "asyncstream: --renamed: expected OLD=NEW, got 'calm'\n")


def test_results_that_the_checkpoint_does_not_know_of_are_taken_out(folder: Path) -> None:
    run = ("run", "work:build", "--checkpoints", "kept", "--restore", "none")
    assert finish(start(folder, *run))[0] == 0
    status, _, errors = finish(start(folder, *run))
    assert (status, "ahead='start_over' to take them out" in errors) == (1, True)
    assert finish(start(folder, *run, "--ahead", "start_over"))[0] == 0
    assert written(folder) == list(range(COUNT))


def test_seal_is_checked_with_the_key_and_said_to_be_unchecked_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right, wrong, path = tmp_path / "right", tmp_path / "wrong", str(tmp_path / "kept")
    right.write_bytes(b"k" * 16)
    wrong.write_bytes(b"w" * 16)
    pipeline = Pipeline("kept")
    pipeline.source([1, 2], name="numbers").to([], name="list")
    sealed = Checkpoints(store=DirectoryStore(path), key=right.read_bytes())
    asyncio.run(pipeline.run(checkpoints=sealed))
    assert main_of("verify", path) == 0
    assert capsys.readouterr().out.count("whole, seal not checked") == 2
    for look in ("verify", "list", "show"):
        assert main_of(look, path, "--key-file", str(right)) == 0
    shown = capsys.readouterr().out
    assert "whole, sealed with this key" in shown
    assert "seal      sealed with this key" in shown
    assert main_of("verify", path, "--key-file", str(wrong)) == 1
    assert main_of("show", path, "--key-file", str(wrong)) == 1
    assert main_of("list", path, "--key-file", str(wrong)) == 0
    assert capsys.readouterr().out.count("unreadable: its seal") == 4
    assert main_of("verify", path, "--key-file", str(tmp_path / "none")) == 1


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("os:system", 1, "suspect, not sealed with a key\n          os:system: SUSPECT"),
        (
            "asyncstream:Pipeline",
            1,
            "SUSPECT, values are not made of it: asyncstream:Pipeline is not a dataclass or attrs class",
        ),
        ("this:Zen", 0, "this:Zen: its module is not imported here"),
        ("__main__:Order", 0, "__main__:Order: defined by the script or notebook that wrote it"),
        ("__main__:Order.Line", 0, "__main__:Order.Line: defined by the script or notebook that wrote it"),
        ("asyncstream:CheckpointInfo", 0, "asyncstream:CheckpointInfo: its module is imported"),
    ],
)
def test_classes_that_a_checkpoint_names_are_told_and_not_imported(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    status: int,
    text: str,
) -> None:
    crafted = json.dumps({"$dataclass": [name, {}]}).encode()
    monkeypatch.setattr(JsonCodec, "encode", lambda codec, value: crafted)
    pipeline = Pipeline("kept")
    pipeline.source([1, 2], name="numbers").to([], name="list")
    path = tmp_path / "kept"
    asyncio.run(pipeline.run(checkpoints=Checkpoints(store=DirectoryStore(path))))
    assert main_of("verify", str(path)) == status
    assert text in capsys.readouterr().out
    assert "this" not in sys.modules


def test_commands_that_ask_no_web_service_do_not_wait_for_aiohttp() -> None:
    asked = "import sys, asyncstream.cli; print('aiohttp' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout == "False\n"
