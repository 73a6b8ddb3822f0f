"""Random programs for the promise queues: what each `take` gives, against the definition of its order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream.async_wait import OutputOrder
from asyncstream.async_wait.promise import PENDING, Passage, Promise
from asyncstream.elements import Watermark

# "put" an element, a "watermark", "take"; or finish one of those that run: the n-th, counted round
STEPS = st.lists(
    st.one_of(st.sampled_from(["put", "put", "watermark", "take"]), st.integers(0, 7)), max_size=60
)


class Held:
    """What the model knows of a promise; a control element is finished from the start."""

    def __init__(self, promise: Promise, place: int, is_control: bool) -> None:
        self.promise = promise
        self.place = place
        self.is_control = is_control
        self.finished = place if is_control else None  # when


def due(held: list[Held], order: OutputOrder) -> list[Held]:
    """What `take` must give, in order: the definition, with no thought of speed."""
    if order is OutputOrder.ORDERED:
        ready = []
        for one in held:
            if one.finished is None:
                break
            ready.append(one)
        return ready
    finished = sorted((one for one in held if one.finished is not None), key=lambda one: one.finished or 0)
    values = [one for one in finished if not one.is_control]
    if order is OutputOrder.EVENT_TIME:
        ready = []
        left = held
        while True:
            end = next((i for i, one in enumerate(left) if one.is_control), len(left))
            ready += [one for one in values if one in left[:end]]
            if end == len(left) or any(one.finished is None for one in left[:end]):
                return ready
            ready.append(left[end])
            left = left[end + 1 :]
    ready = values
    for one in held:
        if one.finished is None:
            break
        if one.is_control:
            ready.append(one)
    return ready


@pytest.mark.parametrize("order", list(OutputOrder), ids=lambda order: order.value)
@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_take_gives_what_the_order_allows_and_keeps_the_rest(order: OutputOrder, steps: list[Any]) -> None:
    queue = order.queue()
    held: list[Held] = []
    for now, step in enumerate([*steps, "take"]):
        if step in ("put", "watermark"):
            promise = Promise()
            promise.value, promise.timestamp, promise.outcome = now, None, PENDING
            if step == "watermark":
                promise.value, promise.outcome = None, Passage(Watermark(now))
                queue.add_control(promise)
            else:
                queue.add(promise)
            held.append(Held(promise, now, step == "watermark"))
        elif step == "take":
            expected = due(held, order)
            assert queue.take() == [one.promise for one in expected]
            assert queue.take() == []
            held = [one for one in held if one not in expected]
        elif running := [one for one in held if one.finished is None]:
            one = running[step % len(running)]
            one.promise.outcome = "done"
            one.finished = now
            queue.finish(one.promise)
        assert list(queue) == [one.promise for one in held]
        assert len(queue) == len(held)
