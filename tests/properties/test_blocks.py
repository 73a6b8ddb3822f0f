"""Random programs for blocks in the promise queues: what leaves, and what is held, against a plain model."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.async_wait import OrderedQueue, SegmentedQueue, UnorderedQueue
from asyncstream.async_wait.blocks import Block, Call, Part
from asyncstream.async_wait.promise import PENDING, Passage, Promise, completed
from asyncstream.elements import Watermark

# add a "block" or a "mark", begin a call that answers at "once" or "waits", "take"; or end one that waits
STEPS = st.lists(
    st.one_of(st.sampled_from(["block", "once", "once", "waits", "mark", "take"]), st.integers(0, 7)),
    max_size=60,
)


Kind: TypeAlias = type[OrderedQueue | UnorderedQueue | SegmentedQueue]


class Unequal:
    """An outcome that cannot be compared."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = None  # type: ignore[assignment]  # what cannot be compared has none


def numbers(ready: list[Promise]) -> list[Any]:
    found: list[Any] = []
    for promise in ready:
        if isinstance(promise, Part):
            assert len(promise.timestamps) == len(promise.outcomes)
            assert promise.timestamps == [outcome.number for outcome in promise.outcomes]
            found += promise.timestamps
        else:
            found.append("mark")
    return found


@pytest.mark.parametrize("kind", [OrderedQueue, UnorderedQueue, SegmentedQueue])
@given(STEPS)
def test_what_leaves_is_what_the_order_lets_go_and_the_rest_is_held(kind: Kind, steps: list[Any]) -> None:
    queue = kind()
    held: list[Any] = []  # numbers, and "mark"
    ended: set[int] = set()
    waiting: list[Call] = []
    blocks: list[Block] = []
    count = 0
    for step in steps:
        call = (
            next((call for block in blocks for call in block.calls), None)
            if step in ("once", "waits")
            else None
        )
        if step == "block":
            new = list(range(count, count + 3))
            count += 3
            blocks.append(Block([*map(str, new)], list(new), []))
            queue.add_block(blocks[-1])
            held += new
        elif step == "mark":
            queue.add_control(completed(None, None, Passage(Watermark(0))))
            held.append("mark")
        elif step == "waits" and call is not None:
            waiting.append(call)
        elif step == "once" and call is not None:
            block, place, value = call
            block.outcomes[place] = Unequal(int(value))
            ended.add(int(value))
        elif isinstance(step, int) and waiting:
            block, place, value = call = waiting.pop(step % len(waiting))
            block.outcomes[place] = Unequal(int(value))
            ended.add(int(value))
            if queue.ended is not None:
                queue.ended(call)
        elif step == "take":
            left = numbers(queue.take())
            wanted = due(held, ended, kind)
            assert as_compared(left, kind) == as_compared(wanted, kind)
            for one in wanted:
                held.remove(one)
        assert [
            "mark" if isinstance(promise.outcome, Passage) else promise.timestamp for promise in queue
        ] == held
        assert {p.timestamp for p in queue if p.outcome is PENDING} == {
            one for one in held if one != "mark" and one not in ended
        }


def due(held: list[Any], ended: set[int], kind: Kind) -> list[Any]:
    """What may leave: a mark behind all before it, a number as the order says."""
    found, is_free, is_first = [], True, True
    for one in held:
        if one == "mark":
            is_there = is_free
            is_first = is_first and is_free
        else:
            is_there = one in ended and (
                kind is UnorderedQueue or (is_free if kind is OrderedQueue else is_first)
            )
        if is_there:
            found.append(one)
        else:
            is_free = False
    return found


def as_compared(left: list[Any], kind: Kind) -> Any:
    """The same for all orders that are as good as this one."""
    if kind is OrderedQueue:
        return left
    if kind is UnorderedQueue:
        return Counter(left)
    places = [-1, *(place for place, one in enumerate(left) if one == "mark"), len(left)]
    return [sorted(left[start + 1 : end]) for start, end in pairwise(places)]
