"""Everything that the README and the documents show is tried: code runs, commands and named files exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import asyncstream
from asyncstream.cli.commands import parser
from tests.documents import BLOCK, DOCUMENTS, README, ROOT
from tests.said import besides_slowness

CONSOLE = frozenset({"bash", "console", "sh", "shell"})

PROGRAMS = frozenset({"asyncstream", "cd", "curl", "git", "make", "pip", "python", "uvicorn"})
"""What a command in a document may start with."""

PATIENCE = 500
"""Seconds after which a block of code hangs; some start Spark, and the machine may be busy."""

PATHS_OF = ("asyncstream/", "benchmarks/", "docs/", "examples/", "tests/")


def blocks(*languages: str) -> list[tuple[str, str]]:
    """The fenced blocks in these languages: document and line where each starts, and its text."""
    found = []
    for name, document in DOCUMENTS.items():
        for block in BLOCK.finditer(document):
            if block["language"].lower() in languages:
                line = document.count("\n", 0, block.start()) + 1
                found.append((f"{name}, line {line}", block["text"]))
    return found


SHOWN = blocks("python", "py")
ON_SPARK = [(where, code) for where, code in SHOWN if "local_spark" in code]
ALONE = [(where, code) for where, code in SHOWN if "local_spark" not in code]


def commands() -> list[tuple[str, str]]:
    """The commands in shell blocks, without prompts, comments and what is printed."""
    found = []
    for where, text in blocks(*CONSOLE):
        lines = [line.split(" #")[0].strip() for line in text.splitlines()]
        prompted = any(line.startswith("$ ") for line in lines)
        for line in lines:
            if line and not line.startswith("#") and (not prompted or line.startswith("$ ")):
                found.append((where, line.removeprefix("$ ")))
    return found


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "PYTHONIOENCODING": "utf-8"}


def test_every_fence_is_closed_and_every_block_found() -> None:
    for name, document in DOCUMENTS.items():
        fences = re.findall(r"^ *```", document, re.MULTILINE)
        assert len(fences) == 2 * len(list(BLOCK.finditer(document))), name
    assert ALONE, "no code is shown"
    assert ON_SPARK, "none on Spark"
    assert commands(), "no commands are shown"


@pytest.mark.parametrize(("where", "code"), ALONE, ids=[where for where, _ in ALONE])
def test_code_runs(where: str, code: str, tmp_path: Path) -> None:
    program = tmp_path / "shown.py"
    program.write_text(code, encoding="utf-8")
    run(tmp_path, str(program))


def test_code_on_spark_runs(tmp_path: Path) -> None:
    """One program after the other in one process: to start a Java takes longer than all that they do."""
    pytest.importorskip("pyspark")
    programs = []
    for where, code in ON_SPARK:
        programs.append(tmp_path / f"{where.replace('/', ' ')}.py")
        programs[-1].write_text(code, encoding="utf-8")
    one_by_one = "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path, run_name='__main__')"
    run(tmp_path, "-c", one_by_one, *map(str, programs))


def run(folder: Path, *arguments: str) -> None:
    """A program that says nothing to standard error."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert besides_slowness(done.stderr) == ""


@pytest.mark.parametrize(("where", "command"), commands(), ids=[command for _, command in commands()])
def test_command_is_one_that_exists(where: str, command: str) -> None:
    words = [word for word in command.split() if not re.fullmatch(r"\w+=\S*", word)]
    assert words[0] in PROGRAMS, f"{where}: {command}"
    if words[0] == "make":
        targets = set(
            re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        )
        assert set(words[1:]) <= targets, f"{where}: {command}"
    if words[0] == "asyncstream":
        parser().parse_args(shlex.split(command)[1:])
    if words[0] == "python" and words[1:2] == ["-m"]:
        module = ROOT / words[2].replace(".", "/")
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists() or words[2] == "pytest"
    for word in words[1:]:
        if word.startswith(PATHS_OF):
            assert (ROOT / word).exists(), f"{where}: {word}"


SKETCHED = blocks("text")


@pytest.mark.parametrize(("where", "text"), SKETCHED, ids=[where for where, _ in SKETCHED])
def test_sketch_says_where_its_names_are(where: str, text: str) -> None:
    """What a block makes is imported by it, or is what `from asyncstream import` gives."""
    names: dict[str, Any] = {name: getattr(asyncstream, name) for name in asyncstream.__all__}
    exec("\n".join(re.findall(r"^from asyncstream.*", text, re.MULTILINE)), names)
    made = re.findall(r"(?<![.\w])([A-Z]\w+)\(", re.sub(r"#.*|\"[^\"]*\"", "", text))
    assert set(made) <= set(names), where


def test_every_extra_is_named_where_it_is_installed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in extras["optional-dependencies"]:
        assert re.search(rf"\[{extra}\]", README), extra
        assert re.search(rf"\[{extra}\]|`{extra}`", DOCUMENTS["docs/index.md"]), extra


def test_figures_of_the_document_on_performance_are_those_that_were_measured() -> None:
    measured = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    for figure in re.findall(r"\d+(?:,\d{3})+|\d+\.\d+", DOCUMENTS["docs/performance.md"]):
        assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d])", measured), figure


def named_paths() -> list[str]:
    """The files and folders of this repository that a document names in `code` or in links."""
    found = set()
    for name, document in DOCUMENTS.items():
        quoted = re.findall(r"`([\w./-]+)`", document)
        found |= {path for path in quoted if path.startswith(PATHS_OF) or re.fullmatch(r"[\w-]+\.md", path)}
        # a link is one from where the document is; in code, brackets and parentheses are none
        links = re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", re.sub(r"`[^`]+`", "", BLOCK.sub("", document)))
        found |= {os.path.normpath(Path(name).parent / link) for link in links}
    return sorted(found)


@pytest.mark.parametrize("path", named_paths())
def test_file_that_is_named_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("path", [path for path in named_paths() if re.fullmatch(r"examples/\w+\.py", path)])
def test_example_that_is_named_says_what_it_is_and_has_a_test(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text.startswith('"""'), f"{path} does not say what it shows"
    compile(text, path, "exec")
    name = Path(path).stem
    tests = (ROOT / "tests").rglob("test_*.py")
    imports = re.compile(rf"from examples import .*\b{name}\b|from examples\.{name}\b|examples\.{name}\b")
    assert any(imports.search(test.read_text(encoding="utf-8")) for test in tests), f"no test runs {path}"


def test_rooms_of_the_map_are_there() -> None:
    """The map of the package names packages and modules that exist."""
    _, _, section = README.partition("## The package, in reading order")
    for name in re.findall(r"`([a-z_/]+)`", section.split("\n## ")[0]):
        here = ROOT / "asyncstream" / name
        assert here.is_dir() or here.with_suffix(".py").exists(), name
