"""
The pytest plugin: virtual time as a fixture. pytest loads it where the package is installed.

    async def test_window_closes(virtual_time):
        async with pipeline.start() as job:
            await job.submit(event)
            await virtual_time.advance(3600)  # takes no time

A test that asks for `virtual_time`, itself or through `@pytest.mark.usefixtures("virtual_time")` or another
fixture, runs in a `VirtualTimeLoop`, and so do its async fixtures. The plugin that runs it is the same as
without: pytest-asyncio, or anyio's. Tests that do not ask for it are left alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import Any

import pytest

from asyncstream.testing.loop import VirtualTime, VirtualTimeLoop

__all__ = ("pytest_generate_tests", "virtual_time")

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
    if FIXTURE not in metafunc.fixturenames or not inspect.iscoroutinefunction(_inner(metafunc.function)):
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


def _inner(function: Any) -> Any:
    """The test itself, inside what Hypothesis makes of it."""
    return function.hypothesis.inner_test if hasattr(function, "hypothesis") else function
