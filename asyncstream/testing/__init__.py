"""
Tools for your own tests.

    run_virtual, VirtualTimeLoop   asyncio code on virtual time; `plugin` makes it a fixture of pytest
    harness                        process functions, window functions, triggers, driven by hand
    source_contract, sink_contract,
    store_contract                 what sources, sinks and stores promise, as checks for your own
    simulation                     a whole pipeline through crashes and restarts, by seed
"""

from asyncstream.testing.contracts import (
    Check,
    ContractBroken,
    sink_contract,
    source_contract,
    store_contract,
    verify,
)
from asyncstream.testing.harness import Harness, HarnessSnapshot, harness
from asyncstream.testing.loop import VirtualTime, VirtualTimeLoop, run_virtual
from asyncstream.testing.segment import Element

__all__ = (
    "Check",
    "ContractBroken",
    "Element",
    "Harness",
    "HarnessSnapshot",
    "VirtualTime",
    "VirtualTimeLoop",
    "harness",
    "run_virtual",
    "sink_contract",
    "source_contract",
    "store_contract",
    "verify",
)
