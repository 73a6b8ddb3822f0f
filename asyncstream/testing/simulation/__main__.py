"""
Tells one story again: `python -m asyncstream.testing.simulation --story tests.mine:story --seed 123`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from asyncstream.testing.simulation.driver import SimulationFailed, line

__all__ = ("main",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell one story of yours, with everything that happened in it."""
    parser = argparse.ArgumentParser(
        prog="python -m asyncstream.testing.simulation", description=main.__doc__
    )
    parser.add_argument("--seed", type=int, required=True, help="which story")
    parser.add_argument(
        "--story", required=True, help="module:function that simulates a seed and returns the Simulation"
    )
    parser.add_argument("--quiet", action="store_true", help="do not print the trace")
    chosen = parser.parse_args(arguments)
    module, _, function = chosen.story.partition(":")
    if chosen.quiet:
        logging.getLogger("asyncstream").setLevel(logging.CRITICAL)
    try:
        simulation = getattr(import_module(module), function)(chosen.seed)
    except SimulationFailed as failed:
        if not chosen.quiet:
            print("\n".join(map(line, failed.trace)))
            if failed.__cause__ is not None:
                traceback.print_exception(failed.__cause__)
        print(failed, file=sys.stderr)
        return 1
    if not chosen.quiet:
        print("\n".join(map(line, simulation.trace)))
    print(f"seed {chosen.seed}: as expected after {simulation.lives} lives")
    return 0


if __name__ == "__main__":
    sys.exit(main())
