from __future__ import annotations

import asyncio
import time

import pytest

from examples import quickstart


def test_quickstart_keeps_the_order_and_routes_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    started = time.perf_counter()
    asyncio.run(quickstart.main())
    assert time.perf_counter() - started < 5  # a quarter of a second, and a slow machine
    first, *failed = capsys.readouterr().out.splitlines()
    assert first.startswith("98 flights in order, from {'flight': 'UA100', 'tail': 'N100', 'plane': 'A320'}")
    assert first.endswith("to {'flight': 'UA199', 'tail': 'N199', 'plane': 'B737'}")
    assert failed == [
        "no plane for UA113: LookupError('no such plane')",
        "no plane for UA142: CallTimeout('no result within 0.25 s')",
    ]
