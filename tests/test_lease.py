"""What a process knows of its own runs."""

from __future__ import annotations

import sys
import weakref
from dataclasses import replace
from typing import Any

import pytest

from asyncstream import lease
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


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_process_that_is_hidden_from_this_user_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where /proc is mounted with hidepid=2, or by systemd's ProtectProc=invisible."""
    going = Holder.here(0)
    enter(going, lambda: True)
    gone = replace(going, pid=2**30)
    assert (presence(going), presence(gone)) == ("alive", "dead")
    monkeypatch.setattr(lease, "_look_up", lambda pid: None)
    assert (presence(going), presence(gone)) == ("unknown", "dead")
    leave(going)
