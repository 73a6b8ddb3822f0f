from __future__ import annotations

import asyncio

import pytest

from asyncstream.testing.loop import run_virtual
from examples import quickstart


def test_quickstart_keeps_the_order_and_routes_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> float:
        await quickstart.main()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) < 0.3  # little longer than the call that does not answer may take
    first, *failed = capsys.readouterr().out.splitlines()
    assert first.startswith("98 flights in order, from {'flight': 'UA100', 'tail': 'N100', 'plane': 'A320'}")
    assert first.endswith("to {'flight': 'UA199', 'tail': 'N199', 'plane': 'B737'}")
    assert failed == [
        "no plane for UA113: LookupError('no such plane')",
        "no plane for UA142: CallTimeout('no result within 0.25 s')",
    ]
