"""
What all tests share: their tiers; Hypothesis without its limit on the time of an example, which on a busy
machine tells nothing of the code; and a log that keeps quiet.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings

from asyncstream.testing import plugin

settings.register_profile("any machine", deadline=None)
settings.register_profile("quick", settings.get_profile("any machine"), max_examples=20)
settings.load_profile("any machine")


pytest_plugins = (
    "pytester",
    "tests.watchdog",
    *(f"tests.servers.{name}" for name in ("certificates", "kafka", "mqtt", "nats", "postgres", "redis")),
)


TIERS: Final[dict[str, tuple[str, ...]]] = {
    "spark": ("spark", "once"),
    "web": ("web", "once"),
    **dict.fromkeys(("cli", "crash", "examples", "properties", "testing", "typing"), ("slow", "once")),
    **dict.fromkeys(("runtime", "crash/test_inbox_kill.py"), ("slow",)),
    **dict.fromkeys(("servers", "simulation", "telemetry"), ("once",)),
    **dict.fromkeys(("simulation/test_journal.py", "simulation/test_leases.py"), ("slow", "once")),
    **dict.fromkeys(
        ("test_cli.py", "test_package.py", "test_pythons.py", "test_readme.py"), ("slow", "once")
    ),
    **dict.fromkeys(("test_architecture.py", "test_docstrings.py", "test_documents.py"), ("once",)),
    **dict.fromkeys(("joins/test_models.py", "keyed/test_models.py"), ("once",)),
    **dict.fromkeys(("windowing/test_generations.py", "windowing/test_partials.py"), ("once",)),
}
"""
The markers of all tests of a folder, or of a file. `make quick` leaves out what is slow, on Spark or in a
browser. What is marked "once" is run on the oldest Python only: the rest depends on the interpreter (tasks,
timers and cancellation, classes and their pickles, SQLite and RocksDB, what every step means, killed
processes of one kind).
"""


HERE: Final = Path(__file__).parent


def markers(path: Path) -> tuple[str, ...]:
    """Those of all tests of a module, or of a folder."""
    inside = path.relative_to(HERE)
    return TIERS.get(inside.as_posix()) or TIERS.get(inside.parts[0] if inside.parts else "", ())


REAL: Final = frozenset(("broker", "slow", "spark", "web"))
PATIENCE: Final = pytest.mark.timeout(600)
"""
What is so marked has to do with processes, servers or browsers, which are as slow as the machine is busy:
only what hangs takes so long. Others wait for nothing.
"""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """
    What is collected stays until the end: the garbage collector would walk over it again and again, which is
    a third of the time that collecting takes, and at the end seconds. So it is frozen: what is looked at is
    what tests make.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if " at 0x" in item.name:  # it has another name in each process
            raise pytest.UsageError(f"{item.nodeid}: give the case a name without an address, by ids=")
        for marker in markers(item.path):
            item.add_marker(marker)
        if item.get_closest_marker("timeout") is None and not REAL.isdisjoint(
            mark.name for mark in item.iter_markers()
        ):
            item.add_marker(PATIENCE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What `-m "not slow and not web"` leaves out as a whole need not be imported."""
    chosen = config.getoption("markexpr")
    if re.fullmatch(r"not \w+( and not \w+)*", chosen) and collection_path.is_relative_to(
        Path(__file__).parent
    ):
        return not set(markers(collection_path)).isdisjoint(re.findall(r"not (\w+)", chosen)) or None
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Where the package is on the path and not installed, pytest does not find its plugin by itself."""
    if not config.pluginmanager.has_plugin("asyncstream"):
        config.pluginmanager.register(plugin, "asyncstream")


@pytest.fixture
async def tidy() -> AsyncIterator[None]:
    """The test leaves no task behind, nor an error that nobody was told of."""
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"
    assert not unheard, f"told to the loop's exception handler: {unheard}"


@pytest.fixture
def others_gone() -> None:
    """
    `gc.collect()` finds nothing that tests before this one have left: that is gone. What has stayed, such as
    what pytest keeps of each test, is frozen: after thousands of tests a collection would take half a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def nothing_frozen() -> Iterator[None]:
    """Nothing is kept from the garbage collector, as in most programs; after the module it is again."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def quiet() -> Iterator[None]:
    """The package logs nothing but disasters: for tests that crash on purpose, over and over."""
    logger = logging.getLogger("asyncstream")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
