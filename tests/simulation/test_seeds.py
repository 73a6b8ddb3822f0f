"""
Thousands of stories of crashes and restarts, each drawn from its seed: nothing is lost, nothing is doubled.

    ASYNCSTREAM_SEEDS=20000 pytest tests/simulation/test_seeds.py     more of them
    python -m asyncstream.testing.simulation --story tests.simulation.scenarios:story --seed 123   one, told
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from asyncstream.testing.simulation import SimulationFailed
from tests.simulation.scenarios import story, swept

SEEDS = int(os.environ.get("ASYNCSTREAM_SEEDS", "2000"))
PARTS = 2
"""Tests among which they are divided: each has its own time."""

PLACES = ("read", "capture", "prepare", "put", "save", "commit", "delete", "recover", "write")
MUST_HAPPEN = frozenset(
    {
        *(f"crash in {place}" for place in PLACES),
        *(f"failure {place}" for place in {*PLACES, "load"} - {"capture"}),
        *("crash at any time", "stopped", "finished", "failed", "no checkpoint"),
        *("compacted", "crash in load", "damage", "went back", "refused"),
    }
)
"""Stories in which one of these never happens prove nothing about it."""


def tell(seeds: range) -> tuple[list[str], Counter[str]]:
    """What is wrong in these stories; and what happened in them, by how often."""
    wrong, happened = [], Counter[str]()
    for seed in swept(seeds):
        try:
            simulation = story(seed)
        except SimulationFailed as failed:
            wrong.append(str(failed))
        else:
            kinds = (
                (what, detail if what in ("crash", "failure") else "")
                for _, _, what, detail in simulation.trace
            )
            happened.update(f"{what} {detail}".strip() for what, detail in kinds)
    return wrong, happened


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_and_nothing_is_doubled(part: int) -> None:
    seeds = range(SEEDS * part // PARTS, SEEDS * (part + 1) // PARTS)
    wrong, happened = tell(seeds)
    assert not wrong, f"{len(wrong)} of {len(seeds)} seeds\n" + "\n\n".join(wrong[:3])
    if SEEDS >= 2000:  # fewer are too few for all of it to happen
        assert not MUST_HAPPEN - set(happened)


@pytest.mark.slow
def test_a_story_is_told_in_the_same_words_each_time() -> None:
    tell_some = f"from {story.__module__} import story\nfor seed in range(20): print(story(seed).trace)"
    told = [
        subprocess.run(
            [sys.executable, "-c", tell_some],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    ]
    assert told[0] == told[1]
    assert told[0].splitlines()[7] == str(story(7).trace)
