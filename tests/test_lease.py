"""What a process knows of its own runs."""

from __future__ import annotations

import os
import sys
import weakref
from dataclasses import replace
from typing import Any

import pytest

from asyncstream import lease
from asyncstream.errors import LeaseHeld
from asyncstream.lease import Holder, Lease, enter, following, leave, presence


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


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are no containers")
@pytest.mark.parametrize("link", ["/proc/self", "/proc/self/ns/pid"])
def test_holder_with_the_same_names_is_not_taken_for_dead_where_containers_cannot_be_told_apart(
    monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    """As in two containers called localhost, in each of which the job is process 1, without a /proc."""
    read = os.readlink

    def hidden(path: str) -> str:
        if path == link:
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(os, "readlink", hidden)
    own = Holder.here(0)
    enter(own, lambda: True)
    assert own.realm == ""
    assert presence(own) == "alive"
    assert {presence(replace(own, token="other", pid=pid)) for pid in (own.pid, 2**30)} == {"unknown"}
    leave(own)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_numbers_of_another_container_are_not_gone_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a container has the /proc of its host."""
    read = os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: "4711" if path == "/proc/self" else read(path))
    assert Holder.here(0).realm == ""


@pytest.mark.parametrize(
    ("elsewhere", "told"),
    [(False, "as soon as that job ends, or"), (True, "gives it back .whether it lives cannot be seen")],
)
def test_who_is_refused_is_told_what_frees_the_lease(elsewhere: bool, told: str) -> None:
    own = Holder.here(0)
    enter(own, lambda: True)
    held = replace(own, host="another") if elsewhere else own
    with pytest.raises(LeaseHeld, match=rf"store is in use by .*\(this one\), since.*{told}.* 30 s"):
        following(Lease(1, "place", held, 31_000), Holder.here(0), 30.0, 1_000, "store")
    leave(own)
    assert "this one" not in str(own)
