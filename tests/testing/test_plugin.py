"""The plugin, as the pytest of a user runs it."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncIterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import Count, Pipeline, PipelineError, TumblingWindows
from asyncstream.aside import DiskThread, aside
from asyncstream.testing import VirtualTime, VirtualTimeLoop, plugin

# ------------------------------------------------------------------ under pytest-asyncio, here


@pytest.fixture
async def at_ten() -> AsyncIterator[float]:
    await asyncio.sleep(10)
    yield asyncio.get_running_loop().time()
    await asyncio.sleep(3600)


async def test_hour_takes_no_time_and_clock_and_loop_agree(virtual_time: VirtualTime) -> None:
    await virtual_time.advance(3600)
    assert virtual_time.time() == asyncio.get_running_loop().time() == 3600
    assert virtual_time.now_ms() == 3_600_000


async def test_fixtures_run_in_the_same_time(virtual_time: VirtualTime, at_ten: float) -> None:
    assert at_ten == virtual_time.time() == 10


@settings(max_examples=5)
@given(st.integers(1, 100))
async def test_property_is_checked_in_virtual_time(virtual_time: VirtualTime, seconds: int) -> None:
    started = virtual_time.time()
    await virtual_time.advance(seconds)
    assert virtual_time.time() == pytest.approx(started + seconds)


async def test_job_goes_by_the_time_of_the_loop(virtual_time: VirtualTime) -> None:
    fired: list[int] = []
    pipeline = Pipeline()
    events = pipeline.submissions().map(lambda value: value)
    events.advance_when_quiet(60).to(fired)
    async with pipeline.start() as job:
        await job.submit(1)
        await virtual_time.advance(120)
        assert fired == [1]
    assert virtual_time.time() < 180


async def test_what_happens_at_the_end_of_an_advance_has_happened(virtual_time: VirtualTime) -> None:
    counts: list[int] = []
    pipeline = Pipeline()
    windows = pipeline.submissions(int).window_all(TumblingWindows(3600, time="processing"))
    windows.aggregate(Count()).map(lambda result: result.value).to(counts)
    async with pipeline.start() as job:
        await job.submit(1)
        await virtual_time.advance(3600)
        assert counts == [1]
        assert virtual_time.time() == 3600
        await job.submit(2)
        await virtual_time.advance(timedelta(hours=1))
        assert counts == [1, 1]


@pytest.mark.parametrize("seconds", [-1, float("nan"), "5"])
async def test_time_does_not_advance_by_what_is_no_length_of_time(
    virtual_time: VirtualTime, seconds: Any
) -> None:
    with pytest.raises(PipelineError, match="seconds: expected"):
        await virtual_time.advance(seconds)


async def test_at_rest_nothing_need_be_left_to_happen(virtual_time: VirtualTime) -> None:
    steps: list[int] = []

    async def many() -> None:
        for step in range(100):
            await asyncio.sleep(0)
            steps.append(step)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(many())
        await asyncio.gather(virtual_time.advance(0), virtual_time.advance(0))
        assert len(steps) == 100


async def test_who_does_not_ask_has_the_usual_time() -> None:
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    with pytest.raises(PipelineError, match="not on virtual time: ask for the fixture"):
        await VirtualTime().advance(1)


# ------------------------------------------------------------------ elsewhere

SUITE = """
import asyncio
import pytest
from asyncstream.aside import DiskThread, aside
from asyncstream.testing import VirtualTimeLoop

{mark}

def on_virtual_time():
    return isinstance(asyncio.get_running_loop(), VirtualTimeLoop)

@pytest.fixture
async def fixture():
    await asyncio.sleep(10)
    yield on_virtual_time()
    await asyncio.sleep(10)

async def test_with(virtual_time, fixture):
    assert fixture and on_virtual_time()
    await asyncio.sleep(3600)
    assert virtual_time.time() >= 3610

@pytest.mark.usefixtures("virtual_time")
async def test_with_a_mark():
    assert on_virtual_time()

@pytest.mark.parametrize("number", [1, 2])
async def test_with_parameters(virtual_time, number):
    assert on_virtual_time()

async def test_without():
    assert not on_virtual_time()

def test_that_is_not_async(virtual_time):
    pass
"""

SCOPE = ["-o", "asyncio_default_fixture_loop_scope=function"]


@pytest.mark.parametrize(
    ("mark", "options"),
    [
        ("", ["-p", "no:anyio", *SCOPE, "-o", "asyncio_mode=auto"]),
        ("pytestmark = pytest.mark.anyio", ["-p", "no:asyncio"]),
        ("pytestmark = pytest.mark.anyio", [*SCOPE, "-o", "asyncio_mode=strict"]),
        ("", ["-p", "no:asyncio", "-o", "anyio_mode=auto"]),
    ],
    ids=["pytest-asyncio", "anyio", "anyio beside pytest-asyncio", "anyio in its automatic mode"],
)
def test_both_plugins_run_a_test_in_virtual_time(
    pytester: pytest.Pytester, mark: str, options: list[str]
) -> None:
    pytester.makepyfile(SUITE.format(mark=mark))
    if "anyio" in mark or any("anyio_mode" in option for option in options):
        pytester.makeconftest(
            "import pytest\n@pytest.fixture(scope='module')\ndef anyio_backend(): return 'asyncio'"
        )
    result = pytester.runpytest_inprocess("-o", "filterwarnings=error", *options)
    result.assert_outcomes(passed=6)


@pytest.mark.parametrize("argument", ["", "virtual_time"], ids=["in its place", "around it"])
def test_fixture_of_the_same_name_is_left_alone_unless_it_asks_for_ours(
    pytester: pytest.Pytester, argument: str
) -> None:
    pytester.makeconftest(f"""
import pytest
@pytest.fixture
def virtual_time({argument}): return "mine"
""")
    pytester.makepyfile(f"""
import asyncio
from asyncstream.testing import VirtualTimeLoop
async def test_it(virtual_time):
    assert virtual_time == "mine"
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop) is {bool(argument)}
""")
    pytester.runpytest_inprocess("-o", "asyncio_mode=auto", *SCOPE).assert_outcomes(passed=1)


def test_unittest_that_makes_its_loop_itself_is_told(pytester: pytest.Pytester) -> None:
    """It ran, in real time."""
    pytester.makepyfile("""
import unittest
import pytest
@pytest.mark.usefixtures("virtual_time")
class TestIt(unittest.IsolatedAsyncioTestCase):
    async def test_it(self): ...
@pytest.mark.usefixtures("virtual_time")
class TestPlain(unittest.TestCase):
    def test_it(self): ...
""")
    result = pytester.runpytest_inprocess(*SCOPE)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*does not reach TestIt, an IsolatedAsyncioTestCase*loop_factory*"])


def test_old_pytest_asyncio_is_told_of(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know the hook by which it is told which loop to use."""
    monkeypatch.setattr(plugin, "FACTORIES", "pytest_hook_that_is_not_there")
    pytester.makepyfile("async def test_it(virtual_time): ...")
    result = pytester.runpytest_inprocess("-o", "asyncio_mode=auto", *SCOPE)
    result.stdout.fnmatch_lines(["*virtual_time needs pytest-asyncio 1.4 or newer*"])


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    (name,) = project["project"]["entry-points"]["pytest11"].values()
    assert import_module(name) is plugin


async def test_time_stands_still_while_a_thread_works_at_the_disk(virtual_time: VirtualTime) -> None:
    async with asyncio.timeout(1):
        assert await aside(lambda: Event().wait(0.05)) is False
    thread = DiskThread()
    async with asyncio.timeout(1):
        assert await thread.do(lambda: Event().wait(0.05)) is False
    thread.end()
    assert virtual_time.time() == 0
