"""
Output order, in straight lines: no event loop, no call, no time.

What a queue gives is written as text: results by name, watermarks as `W5`. Where the names say so the
cases are those of Flink's own queue tests.
"""

from __future__ import annotations

from collections.abc import Sized

import pytest

from asyncstream.async_wait import OrderedQueue, OutputOrder, PromiseQueue, SegmentedQueue, UnorderedQueue
from asyncstream.async_wait.promise import PENDING, Passage, Promise
from asyncstream.elements import Control, EndOfInput, IdleStatus, Watermark

EVERY_ORDER = [order.queue for order in OutputOrder]


class Bench:
    """A queue, driven by short texts: elements are letters or numbers, watermarks `W` and a number."""

    def __init__(self, queue: PromiseQueue) -> None:
        self.queue = queue
        self.promises: dict[str, Promise] = {}

    def put(self, names: str) -> None:
        for name in names.split():
            promise = Promise()
            promise.timestamp = None
            if name.startswith("W"):
                promise.value, promise.outcome = None, Passage(Watermark(int(name[1:])))
                self.queue.add_control(promise)
            else:
                promise.value, promise.outcome = name, PENDING
                self.queue.add(promise)
                self.promises[name] = promise

    def finish(self, names: str) -> None:
        for name in names.split():
            self.promises[name].outcome = name.upper()
            self.queue.finish(self.promises[name])

    def take(self) -> str:
        return " ".join(map(described, self.queue.take()))

    def held(self) -> str:
        return " ".join(promise.value or described(promise) for promise in self.queue)


def described(promise: Promise) -> str:
    if isinstance(promise.outcome, Passage):
        assert isinstance(promise.outcome.control, Watermark)
        return f"W{promise.outcome.control.timestamp}"
    return str(promise.outcome)


@pytest.fixture(params=EVERY_ORDER, ids=[order.value for order in OutputOrder])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param())


# -------------------------------------------------------------------- whatever the order


def test_watermark_on_an_empty_queue_passes_at_once(bench: Bench) -> None:
    bench.put("W1")
    assert bench.take() == "W1"
    assert bench.take() == ""


def test_watermarks_in_a_row_stay_in_a_row(bench: Bench) -> None:
    bench.put("W1 W2")
    assert bench.take() == "W1 W2"
    bench.put("a W3 W4")
    assert bench.take() == ""
    bench.finish("a")
    assert bench.take() == "A W3 W4"


def test_watermark_waits_for_every_element_before_it(bench: Bench) -> None:
    bench.put("a b W1")
    bench.finish("a")
    assert bench.take() == "A"
    bench.finish("b")
    assert bench.take() == "B W1"


def test_watermark_after_everything_has_been_taken_passes(bench: Bench) -> None:
    bench.put("a")
    bench.finish("a")
    assert bench.take() == "A"
    bench.put("W1")
    assert bench.take() == "W1"
    bench.put("b")
    bench.finish("b")
    assert bench.take() == "B"
    assert len(bench.queue) == 0


def test_finished_and_watermark_go_in_one_take(bench: Bench) -> None:
    bench.put("a W1")
    bench.finish("a")
    assert bench.take() == "A W1"


def test_every_control_element_keeps_its_place(bench: Bench) -> None:
    bench.put("a")
    controls: list[Control] = [Watermark(1), IdleStatus(True), EndOfInput()]
    for control in controls:
        promise = Promise()
        promise.value = promise.timestamp = None
        promise.outcome = Passage(control)
        bench.queue.add_control(promise)
    assert bench.take() == ""
    bench.finish("a")
    first, *rest = bench.queue.take()
    assert first.outcome == "A"
    assert [promise.outcome.control for promise in rest] == controls


def test_length_counts_elements_and_control_elements_that_are_held(bench: Bench) -> None:
    bench.put("a b W1 c")
    assert len(bench.queue) == 4
    bench.finish("a")
    bench.take()
    assert len(bench.queue) == 3
    bench.finish("b")
    bench.take()
    assert len(bench.queue) == 1


def test_iteration_is_in_input_order_and_changes_nothing(bench: Bench) -> None:
    bench.put("a b c W3 d e")
    bench.finish("b e")
    assert bench.held() == "a b c W3 d e"
    assert bench.held() == "a b c W3 d e"
    bench.finish("a c d")
    assert sorted(bench.take().split()) == ["A", "B", "C", "D", "E", "W3"]


def test_takes_a_long_stream_through_without_keeping_any_of_it(bench: Bench) -> None:
    """A slow element in every segment, and never a moment at which the queue is empty."""
    bench.put("s0 W0")
    for number in range(1, 500):
        bench.put(f"a{number} s{number} W{number}")
        bench.finish(f"a{number}")
        bench.finish(f"s{number - 1}")
        bench.take()
        assert len(bench.queue) <= 6
        assert contents(bench.queue) <= 20


def contents(queue: PromiseQueue) -> int:
    """How much there is in all containers that the queue holds."""
    parts = {id(part): part for part in vars(queue).values()}
    return sum(len(part) for part in parts.values() if isinstance(part, Sized))


def test_one_slow_element_does_not_make_the_queue_remember_what_has_left(bench: Bench) -> None:
    bench.put("slow")
    for number in range(2000):
        bench.put(f"e{number}")
        bench.finish(f"e{number}")
        bench.take()
    assert contents(bench.queue) <= len(bench.queue) + 200
    bench.finish("slow")
    bench.take()
    assert len(bench.queue) == 0
    assert bench.held() == ""


# -------------------------------------------------------------------- input order


def test_ordered_gives_nothing_while_its_head_runs() -> None:
    bench = Bench(OrderedQueue())
    bench.put("a b W2 d")
    assert bench.take() == ""
    bench.finish("b d")
    assert bench.take() == ""
    assert len(bench.queue) == 4
    bench.finish("a")
    assert bench.take() == "A B W2 D"
    assert len(bench.queue) == 0


def test_ordered_gives_what_is_before_the_first_running_one() -> None:
    bench = Bench(OrderedQueue())
    bench.put("a b c d")
    bench.finish("d b a")
    assert bench.take() == "A B"
    assert bench.take() == ""
    bench.finish("c")
    assert bench.take() == "C D"


def test_ordered_goes_on_in_order_after_it_has_held_finished_ones_back() -> None:
    bench = Bench(OrderedQueue())
    bench.put("a b")
    bench.finish("b")
    assert bench.take() == ""
    bench.put("c")
    bench.finish("c")
    assert bench.take() == ""
    bench.finish("a")
    assert bench.take() == "A B C"


# -------------------------------------------------------------------- as they finish, between watermarks


def test_segments_as_flink_has_them() -> None:
    bench = Bench(SegmentedQueue())
    bench.put("1 2 W2 3 4 W5 5 6")
    assert bench.take() == ""
    assert len(bench.queue) == 8
    bench.finish("3")
    assert bench.take() == ""
    bench.finish("2")
    assert bench.take() == "2"
    assert len(bench.queue) == 7
    bench.finish("6 4")
    assert bench.take() == ""
    bench.finish("1")
    assert bench.take() == "1 W2 3 4 W5 6"
    assert len(bench.queue) == 1
    bench.finish("5")
    assert bench.take() == "5"
    assert bench.take() == ""


def test_segments_without_watermarks_give_completion_order() -> None:
    bench = Bench(SegmentedQueue())
    bench.put("a b c")
    bench.finish("c a")
    assert bench.take() == "C A"
    bench.finish("b")
    assert bench.take() == "B"


def test_no_element_crosses_a_watermark_in_either_direction() -> None:
    bench = Bench(SegmentedQueue())
    bench.put("a W1 b")
    bench.finish("b")
    assert bench.take() == ""
    bench.finish("a")
    assert bench.take() == "A W1 B"


def test_empty_segments_leave_nothing_behind() -> None:
    bench = Bench(SegmentedQueue())
    bench.put("a")
    bench.finish("a")
    assert bench.take() == "A"
    bench.put("W1 b")
    assert bench.take() == "W1"
    bench.finish("b")
    assert bench.take() == "B"
    assert len(bench.queue) == 0


def test_segments_list_elements_in_input_order_also_the_finished() -> None:
    """Flink lists the finished ones first, and the others in the order of a hash set."""
    bench = Bench(SegmentedQueue())
    bench.put("a b c W3 d e")
    bench.finish("b e")
    bench.take()
    assert bench.held() == "a c W3 d e"


# -------------------------------------------------------------------- as they finish


def test_unordered_lets_an_element_go_before_a_watermark_but_no_watermark_before_an_element() -> None:
    bench = Bench(UnorderedQueue())
    bench.put("a W1 b")
    bench.finish("b")
    assert bench.take() == "B"
    assert len(bench.queue) == 2
    bench.finish("a")
    assert bench.take() == "A W1"


def test_unordered_gives_completion_order() -> None:
    bench = Bench(UnorderedQueue())
    bench.put("a b c d")
    bench.finish("c a")
    assert bench.take() == "C A"
    bench.finish("d b")
    assert bench.take() == "D B"


def test_unordered_passes_a_watermark_that_stands_behind_some_that_left() -> None:
    bench = Bench(UnorderedQueue())
    bench.put("a b W1 c W2 d")
    bench.finish("c b d")
    assert bench.take() == "C B D"
    assert bench.held() == "a W1 W2"
    bench.finish("a")
    assert bench.take() == "A W1 W2"
