"""
The pytest plugin: virtual time as a fixture. pytest loads it where the package is installed.

    async def test_window_closes(virtual_time):
        async with pipeline.start() as job:
            await job.submit(event)
            await virtual_time.advance(3600)  # takes no time

A test that asks for `virtual_time`, itself or through `@pytest.mark.usefixtures("virtual_time")` or another
fixture, runs in a `VirtualTimeLoop`, and so do its async fixtures. The plugin that runs it is the same as
without: pytest-asyncio, or anyio's. Tests that do not ask for it are left alone, and so are those for which
a `virtual_time` of the project's own takes its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import Any
from unittest import IsolatedAsyncioTestCase

import pytest

from asyncstream.testing.loop import VirtualTime, VirtualTimeLoop

__all__ = ("pytest_generate_tests", "pytest_runtest_setup", "virtual_time")

FIXTURE = "virtual_time"
BACKEND = "anyio_backend"
FACTORIES = "pytest_asyncio_loop_factories"


@pytest.fixture(scope="session")
def virtual_time() -> VirtualTime:
    """The time of the test's event loop, which jumps from timer to timer. It starts at 0."""
    return VirtualTime()


class _LoopFactories:
    """For pytest-asyncio: in which loop a test runs."""

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_asyncio_loop_factories(self) -> dict[str, Callable[[], VirtualTimeLoop]]:
        return {FIXTURE: VirtualTimeLoop}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, Any, Any]:
    """Choose the event loop of a test on virtual time, as the plugin that runs it wants to be told."""
    if not _is_asked_for(metafunc) or not inspect.iscoroutinefunction(_inner(metafunc.function)):
        return (yield)
    if BACKEND in metafunc.fixturenames:
        backend = ("asyncio", {"loop_factory": VirtualTimeLoop})
        metafunc.parametrize(BACKEND, [backend], ids=[FIXTURE], scope="module")
        return (yield)
    plugins = metafunc.config.pluginmanager
    if plugins.has_plugin("asyncio") and not hasattr(metafunc.config.hook, FACTORIES):
        pytest.fail(
            "virtual_time needs pytest-asyncio 1.4 or newer: pip install 'asyncstream[testing]'",
            pytrace=False,
        )
    # only while this test is looked at, not in loops of other tests
    factories = _LoopFactories()
    plugins.register(factories)
    try:
        return (yield)
    finally:
        plugins.unregister(factories)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a test that makes its event loop itself: it would sleep in real time."""
    if not isinstance(item, pytest.Function) or FIXTURE not in item.fixturenames:
        return
    kind = item.cls
    if kind is not None and issubclass(kind, IsolatedAsyncioTestCase):
        pytest.fail(
            f"virtual_time does not reach {kind.__name__}, an IsolatedAsyncioTestCase: leave it out, and set "
            "loop_factory = VirtualTimeLoop in the class (Python 3.13 or newer), or call "
            "run_virtual(...) in a plain TestCase; both are in asyncstream.testing",
            pytrace=False,
        )


def _is_asked_for(metafunc: pytest.Metafunc) -> bool:
    """Whether the test is given the fixture of this module, and not another of the same name."""
    for found in reversed(metafunc._arg2fixturedefs.get(FIXTURE, ())):  # what overrides first
        if found.func.__module__ == __name__:
            return True
        if FIXTURE not in found.argnames:
            return False
    return False


def _inner(function: Any) -> Any:
    """The test itself, inside what Hypothesis makes of it."""
    return function.hypothesis.inner_test if hasattr(function, "hypothesis") else function
