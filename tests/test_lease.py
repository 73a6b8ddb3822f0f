"""What a process knows of its own runs."""

from __future__ import annotations

import weakref
from typing import Any

from asyncstream.lease import Holder, enter, leave, presence


class Ended:
    """Tells of a run that it does not go on."""

    def __call__(self) -> bool:
        return False


def test_runs_whose_loops_were_closed_are_forgotten() -> None:
    going = Holder.here(0)
    enter(going, lambda: True)
    ended, known = [], weakref.WeakSet[Any]()
    for _ in range(500):
        ended.append(Holder.here(0))
        known.add(goes_on := Ended())
        enter(ended[-1], goes_on)
    del goes_on
    assert len(known) <= 100
    assert {presence(one) for one in ended} == {"dead"}
    assert presence(going) == "alive"
    for holder in (going, *ended):
        leave(holder)
    assert presence(going) == "dead"
