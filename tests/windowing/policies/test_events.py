from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncstream.windowing.policies import EventQueue


def values(queue: EventQueue) -> list[int]:
    return [event.value for event in queue]


def test_reference_going_back_parts_the_events_anew() -> None:
    queue = EventQueue()
    queue.add([1, 2, 3], [30, 10, 20])
    queue.reach(20)
    assert [event.value for event in queue.reached] == [2, 3]
    queue.reach(10)
    assert [event.value for event in queue.reached] == [2]
    assert queue.earliest() == 20
    assert values(queue) == [1, 2, 3]


steps = st.lists(
    st.one_of(
        st.lists(st.integers(0, 50), min_size=1, max_size=30),
        st.integers(0, 60),
        st.none(),
    ),
    max_size=12,
)


@given(steps)
def test_queue_parts_as_a_plain_list_would(actions: list[list[int] | int | None]) -> None:
    queue = EventQueue()
    plain: list[tuple[int, int]] = []  # (order, timestamp)
    reference = -1
    for action in actions:
        if isinstance(action, list):
            orders = range(len(plain), len(plain) + len(action))
            queue.add(list(orders), action)
            plain += zip(orders, action, strict=True)
        elif action is None:
            copy = EventQueue()
            copy.restore(queue.snapshot())
            queue = copy
        else:
            found = [event.value for event in queue.between(action - 10, action)]
            assert found == [order for order, stamp in plain if action - 10 < stamp <= action]
            reference = action
            queue.reach(reference)
        assert len(queue) == len(plain)
        assert values(queue) == [order for order, _ in plain]
        assert [e.value for e in queue.reached] == [order for order, stamp in plain if stamp <= reference]
        beyond = [stamp for _, stamp in plain if stamp > reference]
        assert queue.earliest() == min(beyond, default=None)
        assert queue.count_until(55) == sum(stamp <= 55 for _, stamp in plain) or reference > 55
