"""What the documents say of arguments, defaults and each other; that their code runs is in `test_readme`."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, is_typeddict

import pytest

import asyncstream
from asyncstream import BoundedOutOfOrderness, Checkpoints, Inbox, Job, JsonLinesSource, RedisStreamSink
from asyncstream.async_wait.settings import AsyncWaitSettings
from asyncstream.connectors import PostgresOutbox, RedisGroupSource
from asyncstream.connectors.kafka import KafkaTransactionalSink
from asyncstream.guards import RedisCache, SqliteCache, retry
from asyncstream.web import lifespan
from tests.documents import BLOCK, DOCUMENTS, ROOT
from tests.public_names import public_names

PROSE = {name: BLOCK.sub("", text) for name, text in DOCUMENTS.items()}


async def asked(value: int) -> int:
    return value


STATED: list[tuple[str, Callable[..., Any], str, object]] = [
    ("`transaction_timeout` (15 minutes", KafkaTransactionalSink, "transaction_timeout", 900),
    ("`dead_after` (a minute)", RedisGroupSource, "dead_after", 60),
    ("`dead_after` (a minute)", PostgresOutbox, "dead_after", 60),
    ("`NOTIFY`, and also polls every second", PostgresOutbox, "every", 1),
    ("`remember=` (a day)", RedisStreamSink, "remember", timedelta(days=1)),
    ("`remember=`, a day by default", Inbox, "remember", timedelta(days=1)),
    ("`lease=` seconds (30)", Checkpoints, "lease", 30),
    ("`stuck_after` (3 s)", Job.status, "stuck_after", 3),
    ("`grace=` (10 s)", lifespan, "grace", 10),
    ("`lifespan(replay=1000)`", lifespan, "replay", 1000),
    ("`retry(..., timeout=)` (45 s)", retry, "timeout", 45),
    ("`size=` of the store (a million answers by default)", SqliteCache, "size", 1_000_000),
    ("`size=` of the store (a million answers by default)", RedisCache, "size", 1_000_000),
    ("`complete=True`, the default", JsonLinesSource, "complete", True),
    ("0.2 s of event time, which is the default", BoundedOutOfOrderness, "every", timedelta(seconds=0.2)),
]
"""Figures of the documents: the words, whose they are, and what they amount to."""

FIGURE = re.compile(
    r"`[a-z_]+=?`(?: seconds)? \((?:\d|an? (?:second|minute|hour|day))[^)]*\)"
    r"|`[^`\n]+`[^`.\n]{0,30}\bby default\b"
)

OTHERS = frozenset(
    {"barrier", "days", "profile", "timeout_graceful_shutdown", "total", "wait_for_system_duration"}
)
"""Arguments of other packages' functions, and names that a program chooses."""


@pytest.mark.parametrize(("words", "of", "argument", "value"), STATED, ids=[one[0] for one in STATED])
def test_stated_default_is_that_of_the_code(words: str, of: Any, argument: str, value: object) -> None:
    assert any(words in text for text in PROSE.values()), "the documents do not say so any more"
    parameters = inspect.signature(of).parameters
    assert parameters[argument].default == value


def test_buffer_is_sixteen_times_the_concurrency() -> None:
    assert "**buffer** is 16 x `concurrency` by default" in PROSE["docs/tuning.md"]
    assert AsyncWaitSettings(asked, concurrency=5).buffer_size == 80


def test_every_stated_default_is_looked_up() -> None:
    known = [*(words for words, *_ in STATED), "`concurrency` by default", "Steps have a journal by default"]
    found = [match[0] for text in PROSE.values() for match in FIGURE.finditer(text)]
    assert len(found) > 5
    assert [one for one in found if not any(words in one or one in words for words in known)] == []


def callables() -> Iterator[tuple[str, Any]]:
    """What programs call, by the last part of its name: public functions, classes and their methods."""
    for name, value in public_names().items():
        yield name.rpartition(".")[2], value
        if inspect.isclass(value):
            yield from inspect.getmembers(value, inspect.isroutine)


def arguments() -> dict[str, set[str]]:
    """The arguments of each; `**` where it takes others that it does not name."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, value in callables():
        try:
            parameters = inspect.signature(value).parameters.values()
        except (TypeError, ValueError):  # of what is not written in Python
            continue
        for parameter in parameters:
            is_open = parameter.kind is parameter.VAR_KEYWORD
            found[name].add("**" if is_open else parameter.name)
        if is_typeddict(value):
            found[name] |= set(value.__annotations__)
    return found


def test_argument_that_is_named_exists() -> None:
    by_name = arguments()
    known = OTHERS.union(*by_name.values())
    wrong = []
    for document, text in PROSE.items():
        for code in re.findall(r"`([^`\n]+)`", text):
            called = re.fullmatch(r"[\w.]*?(\w+)\((.*)\)", code)
            of = by_name.get(called[1], set()) if called else set()
            for argument in re.findall(r"(?:^|[(, ])([a-z_]+)=(?!=)", code):
                if argument not in known or (of and argument not in of and "**" not in of):
                    wrong.append(f"{document}: {code}")
    assert not wrong, "\n".join(wrong)


def test_every_room_of_the_package_is_on_its_map() -> None:
    rooms = {module.name for module in iter_modules(asyncstream.__path__)}
    rooms -= {"__main__", "arguments", "calls", "former_names"}  # and what is there for former names
    named = re.findall(r"^    (\w+)  ", asyncstream.__doc__ or "", re.MULTILINE)
    assert sorted(named) == sorted(rooms)


def test_every_folder_of_tests_is_in_the_table_of_suites() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The suites")[2]
    named = {
        name
        for first in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", first)
    }
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
    assert named == folders


def anchors(document: str) -> set[str]:
    """The addresses of a document's headings, as the sites that show it make them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", document), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {re.sub(r" ", "-", heading.strip()) for heading in plain}


def test_heading_that_a_link_leads_to_exists() -> None:
    led = 0
    for name, text in PROSE.items():
        for path, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", text):
            led += 1
            target = str((Path(name).parent / path) if path else Path(name))
            assert anchor in anchors(DOCUMENTS[target]), f"{name}: {path}#{anchor}"
    assert led > 5


def test_every_document_is_reached_from_the_first() -> None:
    docs = {name for name in DOCUMENTS if re.fullmatch(r"docs/[\w-]+\.md", name)}
    reached: set[str] = set()
    left = ["docs/index.md"]
    while left:
        name = left.pop()
        if name in docs - reached:
            reached.add(name)
            left += [f"docs/{link}" for link in re.findall(r"\]\(([\w-]+\.md)", PROSE[name])]
    assert docs - reached == set()
