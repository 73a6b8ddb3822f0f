"""
One call per key at a time: promises whose key is busy wait in the queue of that key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from asyncstream.async_wait.promise import PENDING, Promise, Routed
from asyncstream.operators.results import FirstKeys
from asyncstream.state.keys import SOUND, check_key

__all__ = ("KeySerializer",)


class KeySerializer:
    """Keeps the calls of one key in order; keys do not wait for each other. The `released` may start now."""

    def __init__(self, key_by: Callable[[Any], Hashable]) -> None:
        self._key_by: Callable[[Any], Any] = FirstKeys(self, key_by)
        self._waiting: dict[Hashable, deque[Promise]] = {}
        self.released: deque[Promise] = deque()

    def enter(self, promise: Promise) -> bool:
        """
        Whether the call may start at once; if not, it will be among the released.

        Raises: what the user's key function does, the hashing of its result, or `check_key`.
        """
        promise.key = key = self._key_by(promise.value)
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(promise)
            return False
        if type(key) not in SOUND:
            check_key(key)
        self._waiting[key] = deque()
        return True

    def leave(self, promise: Promise) -> None:
        """The call has really ended: the next of its key may start."""
        waiting = self._waiting[promise.key]
        if waiting:
            self.released.append(waiting.popleft())
        else:
            del self._waiting[promise.key]

    @staticmethod
    def kept(promises: Iterable[tuple[Promise, Any]]) -> Iterator[tuple[Promise, Any]]:
        """
        Each promise, given with its outcome, with the outcome that a snapshot keeps of it.

        A call whose error was to be routed is made again, and so are then the calls after it in its key:
        their results must not go ahead of it.
        """
        again: set[Hashable] = set()
        for promise, outcome in promises:
            if isinstance(outcome, Routed):
                again.add(promise.key)
            elif again and getattr(promise, "key", promise) in again:
                yield promise, PENDING
                continue
            yield promise, outcome

    def in_order(self, entries: Iterable[list[Any]]) -> Iterator[list[Any]]:
        """
        The entries of a snapshot, perhaps of another order, such that no result is ahead of an earlier call
        of its key: such a call is made again.
        """
        calling: set[Hashable] = set()
        for entry in entries:
            if entry[0] == "call":
                calling.add(self._key_by(entry[1]))
            elif entry[0] == "finished" and calling and self._key_by(entry[1]) in calling:
                entry = ["call", *entry[1:3], *entry[4:]]
            yield entry
