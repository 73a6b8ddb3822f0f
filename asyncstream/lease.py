"""
Who may write: one process at a time, which a number proves.

Theory of operation
-------------------
A *lease* says who writes to a place (a store of checkpoints, a sink) and until when it must be renewed. Its
*number* grows by one with each holder, never falls, and goes with every write: a place that has seen number 8
refuses who comes with 7, however long that process was stopped and whatever it still believes. So the
number is what keeps results right, and time only decides how soon another may take over:

* a holder that gave its lease back, or is dead, is followed at once. Dead means: on this machine, since it
  was started, in these containers, there is no process of that number that was started at that moment. The
  moment is there because numbers of processes are used again;
* a holder that lives is followed once its lease has run out: it was stopped, or does not come to renew it;
* a holder elsewhere (another host, another container) cannot be looked at: only its time counts.

A place may be copied, with its lease: a backup, another volume. Then two lines of leases go on from there,
and their numbers say nothing of each other. So a lease names some *before* it, by what is different for every
run: what a sink was told by a run of another line is not taken for one's own. And a job shows in its sinks
until when it has its lease, so that one on a copy, in which that has run out, finds that it goes on. Paths
and inodes would not do: they differ, too, where a disk is mounted elsewhere, and are equal in two volumes.

Clocks of two hosts may differ. A lease that is taken from a holder too early costs this holder an error, and
no process a result.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from asyncstream.errors import LeaseHeld

__all__ = ("Before", "Holder", "Lease", "enter", "following", "is_free", "leave", "presence")


@dataclass(frozen=True, slots=True)
class Holder:
    """
    One run of a job, in one process.

    Attributes:
        host: the name of the machine.
        pid: the number of the process there.
        started: when the process was started, in ticks since the machine was; None where that is not known.
        realm: where this number means this process: the machine since it was started, and its container; ""
            where that is not known.
        token: different for every run.
        since_ms: when it began, milliseconds since the epoch.
    """

    host: str
    pid: int
    started: int | None
    realm: str
    token: str
    since_ms: int

    @classmethod
    def here(cls, since_ms: int) -> Holder:
        """A run of this process."""
        pid = os.getpid()
        found = _look_up(pid)
        started = None if found is None else found[1]
        return cls(platform.node(), pid, started, _realm(), os.urandom(8).hex(), since_ms)

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(" ", "seconds")
        own = " (this one)" if self.token in _RUNS else ""
        return f"process {self.pid} on {self.host}{own}, since {since}"


class Before(NamedTuple):
    """
    A lease that was given before.

    Attributes:
        number: of that lease.
        token: that of its holder.
        ended: whether it was known, when the next one was given, that its holder had come to its end.
    """

    number: int
    token: str
    ended: bool


@dataclass(frozen=True, slots=True)
class Lease:
    """
    The right to write.

    Attributes:
        number: one more than that of the holder before; starts at 1.
        place: an identifier of the place, made with its first lease.
        holder: who has it.
        until_ms: when it runs out unless it is renewed, milliseconds since the epoch.
        released: whether the holder has given it back.
        before: the last ones before it of the same place, the latest first.
    """

    number: int
    place: str
    holder: Holder
    until_ms: int
    released: bool = False
    before: tuple[Before, ...] = ()

    def renewed(self, until_ms: int) -> Lease:
        """The same, for longer."""
        return replace(self, until_ms=until_ms)

    def finds_held(self, last: Lease, now_ms: int) -> bool:
        """Whether `last`, of the same place, goes on, as far as can be known with what is before this one."""
        known = self.known_as(last)
        return not (known is not None and known.ended) and not is_free(last, now_ms)

    def given_back(self) -> Lease:
        """The same, free to be taken."""
        return replace(self, released=True)

    def is_same(self, other: Lease | None) -> bool:
        """Whether `other` is this lease as it was given, perhaps for another time."""
        return other is not None and replace(other, until_ms=self.until_ms, before=self.before) == self

    def known_as(self, last: Lease) -> Before | None:
        """
        What the line of this lease has under the number of `last`, a lease of the same place; None: that is
        too long ago, or not yet.
        """
        line = (Before(self.number, self.holder.token, self.released), *self.before)
        return next((one for one in line if one.number == last.number), None)

    def to_json(self) -> bytes:
        """As it is written down."""
        return self.to_text().encode()

    def to_text(self) -> str:
        """The same as text, where a column or a record takes that."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: bytes | str) -> Lease:
        """
        From what `to_json` or `to_text` gave.

        Raises:
            ValueError: if it is something else.
        """
        try:
            found: dict[str, Any] = json.loads(data)
            before = tuple(Before(*one) for one in found.get("before", ()))
            holder = Holder(**found["holder"])
            str(holder)
            times = (found["number"], found["until_ms"], holder.pid, holder.since_ms)
            texts = (found["place"], holder.host, holder.realm, holder.token)
            if {*map(type, times)} != {int} or {*map(type, texts)} != {str}:
                raise TypeError("it has parts of other types")
            return cls(**{**found, "holder": holder, "before": before})
        except (TypeError, KeyError, AttributeError, ArithmeticError, OSError, RecursionError) as error:
            raise ValueError(f"not a lease: {error}") from error


def following(
    current: Lease | None, holder: Holder, seconds: float, now_ms: int, what: str, least: int = 0
) -> Lease:
    """
    The lease that follows `current`.

    Args:
        current: the one that was given last; None if there was none.
        holder: who wants it.
        seconds: for how long it is good.
        now_ms: milliseconds since the epoch.
        what: the place, for the message.
        least: a number that was given already, although no lease tells of it.

    Raises:
        LeaseHeld: if another process has it.
    """
    until_ms = now_ms + round(seconds * 1000)
    if current is None:
        return Lease(least + 1, os.urandom(8).hex(), holder, until_ms)
    if not is_free(current, now_ms):
        left = max(current.until_ms - now_ms, 0) / 1000
        is_seen = presence(current.holder) == "alive"
        ends = "ends" if is_seen else "gives it back (whether it lives cannot be seen from here)"
        raise LeaseHeld(
            f"{what} is in use by {current.holder}: only one job at a time may write there. It is free as "
            f"soon as that job {ends}, or has been silent for another {left:.0f} s"
        )
    ended = current.released or presence(current.holder) == "dead"
    before = (Before(current.number, current.holder.token, ended), *current.before)[:_KNOWN]
    return Lease(max(current.number, least) + 1, current.place, holder, until_ms, before=before)


def is_free(current: Lease, now_ms: int) -> bool:
    """Whether another process may take it."""
    return current.released or current.until_ms <= now_ms or presence(current.holder) == "dead"


_KNOWN: Final = 32
"""Leases before it that a lease names."""


# ------------------------------------------------------------------ who is there

_RUNS: dict[str, Callable[[], bool]] = {}
"""The runs of this process, by token; each tells whether it goes on."""

_MANY: Final = 100
"""Runs that are kept, at least, before those that do not go on are looked for."""


def enter(holder: Holder, goes_on: Callable[[], bool]) -> None:
    """From now on `holder`, a run of this process, lives for as long as `goes_on` says so."""
    if len(_RUNS) >= _MANY:
        for token, one_goes_on in list(_RUNS.items()):  # other threads have runs of their own
            if not one_goes_on():  # its event loop was closed, and nobody has called `leave`
                _RUNS.pop(token, None)
    _RUNS[holder.token] = goes_on


def leave(holder: Holder) -> None:
    """`holder` has come to its end."""
    _RUNS.pop(holder.token, None)


def presence(holder: Holder) -> Literal["alive", "dead", "unknown"]:
    """What can be known, here and now, about the holder of a lease."""
    if holder.host != platform.node() or holder.realm != _realm():
        return "unknown"
    if holder.realm:
        found = _look_up(holder.pid)
        if found is None and _is_there(holder.pid):
            return "unknown"  # of another user, and hidden: /proc may show one's own only
        if found is None or found[0] in "ZX" or found[1] != holder.started:
            return "dead"
    elif os.name != "posix" or (sys.platform == "linux" and holder.token not in _RUNS):
        return "unknown"  # on Linux it may be a container of the same name, with the same numbers
    elif not _is_there(holder.pid):
        return "dead"
    if holder.pid == os.getpid():
        goes_on = _RUNS.get(holder.token)
        return "alive" if goes_on is not None and goes_on() else "dead"
    return "alive" if holder.realm else "unknown"


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # there, and not ours
        pass
    return True


def _look_up(pid: int) -> tuple[str, int] | None:
    """The state of a process, and when it was started; None if it is not there, or cannot be known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _realm() -> str:
    """Where the number of a process means the same process; "" if this system does not say."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""  # the numbers in /proc are those of another container
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
