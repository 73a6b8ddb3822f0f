"""
Tools for your own tests.

    run_virtual, VirtualTimeLoop   asyncio code on virtual time; `plugin` makes it a fixture of pytest
    harness                        process functions, window functions, triggers, driven by hand
    simulation                     a whole pipeline through crashes and restarts, by seed
"""

from asyncstream.testing.harness import Harness, HarnessSnapshot, harness
from asyncstream.testing.loop import VirtualTime, VirtualTimeLoop, run_virtual
from asyncstream.testing.segment import Element

__all__ = (
    "Element",
    "Harness",
    "HarnessSnapshot",
    "VirtualTime",
    "VirtualTimeLoop",
    "harness",
    "run_virtual",
)
