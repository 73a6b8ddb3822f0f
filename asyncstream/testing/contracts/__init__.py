"""
Conformance suites: what the runtime asks of sources, sinks and stores, as checks for one's own.

    @pytest.mark.parametrize("check", sink_contract(make, read, ELEMENTS), ids=str)
    async def test_my_sink(check, tmp_path):
        await check(tmp_path)

Without pytest, `await verify(sink_contract(...))`. The package's own sources, sinks and stores pass them.
"""

from asyncstream.testing.contracts.checks import Check, ContractBroken, verify
from asyncstream.testing.contracts.sinks import sink_contract
from asyncstream.testing.contracts.sources import source_contract
from asyncstream.testing.contracts.stores import store_contract

__all__ = ("Check", "ContractBroken", "sink_contract", "source_contract", "store_contract", "verify")
