"""What shells complete: asked of the shells themselves, where they are installed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
from pathlib import Path

import pytest

from asyncstream.cli import main
from asyncstream.cli.commands import parser
from asyncstream.cli.completion import SHELLS, script

BASH = """
source ./script
COMP_WORDS=(asyncstream "$@"); COMP_CWORD=$#
_asyncstream
printf '%s\\n' "${COMPREPLY[@]}"
"""

FISH = 'source ./script; complete -C "asyncstream $argv"'


def installed(shell: str, folder: Path) -> str:
    """Where a shell is, when its script is in a folder."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    (folder / "script").write_text(script(parser(), shell))
    (folder / "rows.csv").write_text("")
    (folder / "rows_folder").mkdir()
    return path


def environment(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TERM": "dumb"}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_commands_options_and_values_are_completed(shell: str, tmp_path: Path) -> None:
    path = installed(shell, tmp_path)

    def completed(*words: str) -> set[str]:
        """What is offered in place of the last of the words."""
        arguments = ["bash", *words] if shell == "bash" else [" ".join(words)]
        done = subprocess.run(
            [path, "-c", BASH if shell == "bash" else FISH, *arguments],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stderr == ""
        return {line.split("\t")[0].rstrip("/") for line in done.stdout.splitlines() if line}

    offered = completed("")
    assert {"run", "enrich", "describe", "checkpoint", "completion"} <= offered
    assert "rows.csv" not in offered
    assert completed("checkpoint", "ver") == {"verify"}
    assert completed("run", "--max") == {"--max-restarts"}
    assert "--max-restarts" in completed("enrich", "rows.csv", "--")
    assert completed("run", "work:pipeline", "--log-level", "w") == {"warning"}
    assert completed("run", "--checkpoints", "rows") == {"rows_folder"}
    assert completed("run", "--grace", "ro") == set()
    assert completed("enrich", "row") == {"rows.csv", "rows_folder"}
    assert completed("enrich", "in.csv", "--out", "row") == {"rows.csv", "rows_folder"}
    assert completed("checkpoint", "list", "rows.") == {"rows.csv"}
    assert completed("completion", "z") == {"zsh"}


def test_zsh_completes_what_is_typed(tmp_path: Path) -> None:
    path = installed("zsh", tmp_path)
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(
        [path, "-f", "-i"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = ""

    def type_in(text: str, until: str) -> None:
        nonlocal seen
        seen = ""
        os.write(ours, text.encode())
        while until not in seen:
            assert select.select([ours], [], [], 30)[0], seen
            seen += os.read(ours, 65536).decode()

    try:
        type_in("PS1=; autoload -U compinit; compinit -D; source ./script; echo rea''dy\n", "ready")
        for typed, becomes in (
            ("checkpoint ver", "verify"),
            ("run --max", "--max-restarts"),
            ("run work:pipeline --log-level w", "warning"),
            ("run --checkpoints rows", "rows_folder/"),
            ("checkpoint list rows.", "rows.csv"),
        ):
            type_in(f"asyncstream {typed}\t", becomes)
            type_in("\x15", "")
    finally:
        shell.kill()
        shell.wait(30)
        os.close(ours)


@pytest.mark.parametrize("shell", SHELLS)
def test_command_prints_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == script(parser(), shell)
