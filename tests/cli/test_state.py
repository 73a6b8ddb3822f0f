"""`asyncstream state query` and `checkpoint diff`, and `job.state("step").get(key)`: the same answers."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
from collections import OrderedDict
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from asyncstream import (
    Checkpoints,
    DirectoryStore,
    DiskState,
    KeyedProcessFunction,
    Pipeline,
    PipelineError,
)
from asyncstream.cli import main
from asyncstream.state import MapDescriptor, ValueDescriptor


class Totals(KeyedProcessFunction[Any, Any]):
    total = ValueDescriptor[int]("total")
    seen = MapDescriptor[str, int]("seen")

    def open(self, ctx: Any) -> None:
        self.of, self.marks = ctx.state(self.total), ctx.state(self.seen)

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        self.of.set((self.of.get() or 0) + value[1])
        self.marks.put(str(value[1]), value[1])
        if value[1] == 3:
            self.of.clear()
        ctx.register_event_timer(1_000 * value[1])

    def on_timer(self, timestamp: int, ctx: Any, out: Any) -> None: ...


def totals(key_by: Any = lambda value: value[0]) -> Pipeline:
    pipeline = Pipeline("totals")
    keyed = pipeline.submissions(name="in").map(lambda value: value, name="same").key_by(key_by)
    keyed.process(Totals(), name="totals").to([], name="out")
    return pipeline


async def fed(path: Path, *rounds: list[Any], key_by: Any = lambda value: value[0]) -> dict[str, Any]:
    """Take a checkpoint after each round; what the job says of key "a" at the end."""
    async with totals(key_by).start(checkpoints=Checkpoints(store=DirectoryStore(path), keep=9)) as job:
        for values in rounds:
            for value in values:
                await job.submit(value)
            for _ in range(20):
                await asyncio.sleep(0)
            await job.checkpoint()
        assert job.state == "running"
        return await job.state("totals").get("a")


def test_a_running_job_and_its_checkpoint_tell_of_one_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = asyncio.run(fed(tmp_path, [("a", 1), ("b", 5), ("a", 2)]))
    assert told == {
        "state/total": 3,
        "state/seen": {"1": 1, "2": 2},
        "timers/event": [(1000, None), (2000, None)],
    }
    assert main(["state", "query", str(tmp_path), "totals", "a"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [
        'state/seen: {"1": 1, "2": 2}',
        "state/total: 3",
        "timers/event: [[1000, null], [2000, null]]",
    ]
    assert main(["state", "query", str(tmp_path), "totals", "nobody"]) == 1
    assert "nothing of nobody" in capsys.readouterr().out


def test_what_was_told_is_a_copy(tmp_path: Path) -> None:
    async def told_twice() -> list[dict[str, Any]]:
        async with totals().start() as job:
            await job.submit(("a", 1))
            for _ in range(20):
                await asyncio.sleep(0)
            first = await job.state("totals").get("a")
            first["state/seen"].clear()
            return [await job.state("totals").get("a")]

    assert asyncio.run(told_twice())[0]["state/seen"] == {"1": 1}


class Uncopied(int):
    def __add__(self, other: int) -> Uncopied:
        return self

    __radd__ = __add__

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("there is only one")


def test_what_cannot_be_shown_of_a_job_is_refused_and_not_taken_for_nothing(tmp_path: Path) -> None:
    async def ask() -> None:
        async with totals().start() as job:
            view = job.state("totals")
            with pytest.raises(PipelineError, match=r"^key: expected one that is hashable.*got \['a'\]"):
                await view.get(cast(Any, ["a"]))
        async with totals().start() as job:
            await job.submit(("a", Uncopied(1)))
            for _ in range(20):
                await asyncio.sleep(0)
            with pytest.raises(PipelineError, match=r"step 'totals': no copy can be made .* of key 'a'"):
                await job.state("totals").get("a")
        async with totals().start(state=DiskState(tmp_path / "state", young_rows=1)) as job:
            await job.submit(("a", 1))
            for _ in range(20):
                await asyncio.sleep(0)
            view = job.state("totals")
        for ended in (view, job.state("totals")):
            with pytest.raises(PipelineError, match="on disk, which was given up when the job ended"):
                await ended.get("a")

    asyncio.run(ask())


def test_what_was_pickled_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def pickled() -> None:
        settings = Checkpoints(store=DirectoryStore(tmp_path), codec="pickle")
        async with totals().start(checkpoints=settings) as job:
            await job.submit(("a", 1))

    asyncio.run(pickled())
    for command in (
        ["state", "query", str(tmp_path), "totals", "a"],
        ["checkpoint", "diff", str(tmp_path), "1", "2"],
    ):
        assert main(command) == 1
        assert "was written with codec='pickle', and is not read here: " in capsys.readouterr().err


def test_keys_are_typed_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(fed(tmp_path, [(7, 1), ("x", 2)], key_by=lambda value: (value[0], "de")))
    assert main(["state", "query", str(tmp_path), "totals", '[7, "de"]']) == 0
    assert "state/total: 1" in capsys.readouterr().out
    assert main(["state", "query", str(tmp_path), "totals", '["x", "de"]', "--number", "2"]) == 0
    assert "state/total: 2" in capsys.readouterr().out
    assert main(["state", "query", str(tmp_path), "totals", '[{"no": "key"}]']) == 1
    assert "the key of nothing: unhashable" in capsys.readouterr().err


def test_modules_with_classes_may_be_in_the_directory_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(fed(tmp_path / "kept", [("a", 1)]))
    (tmp_path / "classes_of_mine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    query = ["state", "query", "kept", "totals", "a", "--import"]
    assert main([*query, "classes_of_mine"]) == 0
    assert "classes_of_mine" in sys.modules
    monkeypatch.delitem(sys.modules, "classes_of_mine")
    capsys.readouterr()
    assert main([*query, "classes_of_nobody"]) == 1
    assert capsys.readouterr().err == "asyncstream: there is no module 'classes_of_nobody'\n"


def test_class_that_is_not_imported_is_told_with_what_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "colours_of_mine.py").write_text("import enum\nclass Colour(enum.Enum):\n    RED = 1\n")
    colour = importlib.import_module("colours_of_mine").Colour
    asyncio.run(fed(tmp_path / "kept", [(colour.RED, 1)], [(colour.RED, 2)]))
    monkeypatch.delitem(sys.modules, "colours_of_mine")
    kept = str(tmp_path / "kept")
    for command in (["state", "query", kept, "totals", "a"], ["checkpoint", "diff", kept, "2", "3"]):
        assert main(command) == 1
        told = capsys.readouterr().err
        assert "import colours_of_mine before" in told
        assert told.endswith("; --import MODULE imports one here\n")
        assert main([*command, "--import", "colours_of_mine"]) == int(
            command[0] == "state"
        )  # none of that key
        assert capsys.readouterr().err == ""
        monkeypatch.delitem(sys.modules, "colours_of_mine")


class Noted(KeyedProcessFunction[Any, Any]):
    def open(self, ctx: Any) -> None:
        self.note = ctx.state(ValueDescriptor[str]("a\nnote \x1b[31m"))

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        self.note.set("\x1b[2J über \x9b31m")


def test_nothing_in_a_checkpoint_acts_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def noted() -> None:
        pipeline = Pipeline("noted")
        pipeline.submissions(name="in").key_by(len).process(Noted(), name="notes").discard(name="out")
        async with pipeline.start(checkpoints=Checkpoints(store=DirectoryStore(tmp_path / "kept"))) as job:
            await job.submit("one")
            for _ in range(20):
                await asyncio.sleep(0)

    asyncio.run(noted())
    store = str(tmp_path / "kept")
    for command in (
        ["state", "query", store, "notes", "3"],
        ["checkpoint", "show", store],
        ["checkpoint", "diff", store, "1", "2"],
    ):
        assert main(command) == 0
        out = capsys.readouterr().out
        assert r"state/a\nnote \x1b[31m: " in out
        assert out.replace("\n", "").isprintable()
        assert "query" not in command or out.endswith(r'"\u001b[2J über \u009b31m"' + "\n")


def test_diff_counts_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(fed(tmp_path, [("a", 1), ("b", 5), ("c", 1)], [("a", 1), ("d", 1), ("c", 3)]))
    assert main(["checkpoint", "diff", str(tmp_path), "2", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  totals/state/total: 1 added, 1 removed, 1 changed" in lines
    assert "  totals/timers/event: 2 added" in lines


class Keeping(KeyedProcessFunction[Any, Any]):
    """Keeps each element as it is."""

    kept = ValueDescriptor[Any]("kept")

    def open(self, ctx: Any) -> None:
        self.of = ctx.state(self.kept)

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        self.of.set(value[1])


@dataclass(frozen=True)
class Place:
    """A key of a type that JSON has no word for."""

    x: int


PLACE = '{"$dataclass": ["tests.cli.test_state:Place", {"x": 1}]}'


def nested(levels: int) -> Any:
    return {1: nested(levels - 1)} if levels else 2


@pytest.mark.parametrize(
    ("first", "second", "is_changed", "shown"),
    [
        (np.array([1, 2]), np.array([1, 3]), True, '{"$repr": "array([1, 3])"}'),
        (np.array([1, 2]), np.array([1, 2]), False, '{"$repr": "array([1, 2])"}'),
        (1, True, True, "true"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False, '{"b": 2, "a": 1}'),
        ([{1: {"a", "b"}, 2: 3}], [{2: 3, 1: {"b", "a"}}], False, None),
        ({1: 2, 3: 4}, {1: 4, 3: 2}, True, None),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1), True, None),
        (nested(100), 3, True, None),
        (float("nan"), float("nan"), False, '{"$float": "nan"}'),
        ({(1, b"k"): None}, {(1, b"k"): 2}, True, '{"$dict": [[1, {"$bytes": "aw=="}], 2]}'),
        (0, (2**70, {"$date": [Place(1)]}), True, f'[{2**70}, {{"$dict": ["$date", [{PLACE}]]}}]'),
        ("2026-01-31", date(2026, 1, 31), True, '{"$date": "2026-01-31"}'),
        ({1: 2}, {"1": 2}, True, '{"1": 2}'),
        ({"1": 2}, {1: 2}, True, '{"$dict": [1, 2]}'),
        ("a", "\ud800 \N{SNOWMAN}", True, '"\\ud800 \N{SNOWMAN}"'),
    ],
    ids=[
        "other array",
        "array",
        "bool",
        "dict",
        "dict in a list",
        "other dict",
        "ordered",
        "deep",
        "nan",
        "keys",
        "nested",
        "date",
        "text as a key",
        "number as a key",
        "half a character",
    ],
)
def test_any_value_is_compared_and_shown(
    first: Any,
    second: Any,
    is_changed: bool,
    shown: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for elements in ([("a", first)], [("a", first), ("a", second)]):
        pipeline = Pipeline()
        keyed = pipeline.source(elements, name="in").key_by(lambda element: element[0])
        keyed.process(Keeping(), name="keeping").to([], name="out")
        pipeline.run_blocking(checkpoints=Checkpoints(store=DirectoryStore(tmp_path), keep=9))
    assert main(["checkpoint", "diff", str(tmp_path), "2", "3"]) == 0
    assert ("  keeping/state/kept: 1 changed\n" in capsys.readouterr().out) is is_changed
    assert main(["state", "query", str(tmp_path), "keeping", "a"]) == 0
    out = capsys.readouterr().out
    assert shown is None or out == f"state/kept: {shown}\n"
    json.loads(out.removeprefix("state/kept: "), parse_constant=pytest.fail)


def test_show_tells_tables_and_the_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(fed(tmp_path, [("a", 1)]))
    assert main(["checkpoint", "show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "state/total: " in shown
    assert re.search(r"^ +parts \{total=ValueDescriptor\(\), seen=MapDescriptor\(\)\}$", shown, re.MULTILINE)
    assert "fields {grouping='by key'}" in shown


@pytest.mark.parametrize(
    ("key", "typed"),
    [
        (-3, "-3"),
        (None, "null"),
        ("7", '"7"'),
        (2**70, str(2**70)),
        (date(2026, 1, 31), '{"$date": "2026-01-31"}'),
        ((date(2026, 1, 31), 3), '[{"$date": "2026-01-31"}, 3]'),
        (b"abc", '{"$bytes": "YWJj"}'),
        (Place(2), '{"$dataclass": ["tests.cli.test_state:Place", {"x": 2}]}'),
        (((1, 2), "x"), '[{"$tuple":[1,2]},"x"]'),
    ],
)
def test_a_key_of_any_type_can_be_typed_and_is_shown_as_one_that_would_be_found(
    key: Any, typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(fed(tmp_path, [(key, 1)], key_by=lambda value: value[0]))
    query = ["state", "query", str(tmp_path), "totals"]
    assert main([*query, "nobody"]) == 1
    told = capsys.readouterr().out
    like = told.partition("; its keys are written like ")[2].rstrip()
    for one in (typed, like):
        assert main([*query, one]) == 0
        assert "state/total: 1" in capsys.readouterr().out


def test_of_a_long_key_the_beginning_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(fed(tmp_path, [("long" * 1000, 1)]))
    assert main(["state", "query", str(tmp_path), "totals", "nobody"]) == 1
    assert len(capsys.readouterr().out) < 400


@pytest.mark.parametrize("typed", ['{"$date": "tomorrow"}', '{"$nothing": 1}', '{"$dataclass": 1}'])
def test_what_is_no_key_is_refused(typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(fed(tmp_path, [("a", 1)]))
    assert main(["state", "query", str(tmp_path), "totals", typed]) == 1
    assert "is the key of nothing: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["state", "query", "{}", "elsewhere", "a"], "holds no step 'elsewhere'"),
        (["state", "query", "{}", "in", "a"], "step 'in' keeps no tables"),
        (["state", "query", "{}", "totals", "a", "--number", "77"], "no checkpoint 77"),
        (["checkpoint", "diff", "{}", "1", "77"], "no checkpoint 77"),
        (["state", "query", "{}/nowhere", "totals", "a"], "there is nothing at"),
        (["state", "query", "{}", "totals", "a", "--import", ""], "expected the name of a module, .* got ''"),
        (["state", "query", "{}", "totals", "a", "--import", ".b"], "expected the name of a module"),
    ],
)
def test_what_is_not_there_is_said(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(fed(tmp_path, [("a", 1)]))
    assert main([argument.format(tmp_path) for argument in arguments]) == 1
    assert re.search(told, capsys.readouterr().err)


def test_steps_that_cannot_be_asked_are_refused(tmp_path: Path) -> None:
    job = totals().start()
    assert job.state == "new"
    with pytest.raises(PipelineError, match="remember nothing before it runs"):
        job.state("totals")

    async def ask() -> None:
        async with totals().start() as running:
            with pytest.raises(PipelineError, match="no step 'elsewhere'"):
                running.state("elsewhere")
            with pytest.raises(PipelineError, match="keeps no tables"):
                running.state("same")
            with pytest.raises(PipelineError, match=r"^step: expected a non-empty text, got \["):
                running.state(cast(Any, ["totals"]))

    asyncio.run(ask())
