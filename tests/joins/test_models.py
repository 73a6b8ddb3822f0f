"""All kinds of joins against nested loops, whole, restored at any place, and divided by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.clock import ManualClock
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.joins import timed
from asyncstream.joins.as_of import AsOfOperator
from asyncstream.joins.interval import IntervalJoinOperator
from asyncstream.joins.window_join import WindowJoinOperator
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.ports import MultiInput
from asyncstream.state.rows import run_through
from asyncstream.windowing import TumblingWindows, WindowPlan
from tests.joins.models import Step, as_of, interval_join, window_join
from tests.operators.recorder import RESTORED, Recorder, W

HOWS = ("inner", "left", "right", "full")


@pytest.fixture(scope="module", params=[0, 500], autouse=True)
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """Buffers of a few elements, whose fronts are cut off together or one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timed.Fronts, "few", request.param)
        yield


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Elements of two inputs and their watermarks, mostly near each other in time; both ends at last."""
    drawn = draw(
        st.lists(
            st.tuples(st.integers(0, 1), st.sampled_from(("a", "a", "b", None)), st.integers(0, 20)),
            max_size=25,
        )
    )
    steps = [Step(*each, number) for number, each in enumerate(drawn)]
    return steps + [Step(side, None, MAX_TIMESTAMP, -1) for side in (0, 1)]


class Run:
    """A join that is driven, and what comes out."""

    def __init__(self, make: Callable[[], MultiInput]) -> None:
        self.make = make
        self.results: list[Any] = []
        self.late: list[Any] = []
        self.operator = self.opened()

    def opened(self) -> MultiInput:
        operator = self.make()
        operator.out, late = Recorder(), Recorder()
        operator.side = dict.fromkeys(("late", "late_left", "late_right"), late)
        operator.open(OperatorContext(clock=ManualClock()))
        return operator

    def restart(self, state: Any = None) -> None:
        """Take up what the operator remembered, or what is given instead."""
        state = self.operator.snapshot() if state is None else state
        self.collect()
        self.operator = self.opened()
        self.operator.restore(state)
        self.operator.resume()

    def play(self, steps: Sequence[Step]) -> None:
        for step in steps:
            port: Operator = self.operator.port(step.side)
            if step.key is None:
                port.advance_watermark(step.at_ms)
            else:
                port.process(tuple(step), step.at_ms)

    def collect(self) -> Run:
        out, late = self.operator.out, self.operator.side["late"]
        assert isinstance(out, Recorder)
        assert isinstance(late, Recorder)
        self.results += [entry for entry in out.seen if isinstance(entry[0], tuple)]
        self.late += late.values()
        return self


def key_of(element: Any) -> Any:
    return element[1]


def check(
    make: Callable[[], MultiInput], steps: list[Step], cuts: list[int], expected: tuple[list[Any], list[Any]]
) -> None:
    """Played whole, restored after some of the steps, and in two parts from one of them on."""
    cuts = [cut for cut in cuts if cut < len(steps) - 1]  # the ends of both inputs are told again together
    whole = Run(make)
    whole.play(steps)
    assert (sorted(whole.collect().results, key=repr), whole.late) == expected
    assert not any(len(table) for table in whole.operator.tables if table.name != "versions")
    restored = Run(make)
    for number, step in enumerate(steps):
        if number in cuts:
            restored.restart()
        restored.play([step])
    assert (sorted(restored.collect().results, key=repr), restored.late) == expected
    at = cuts[0] if cuts else 0
    first = Run(make)
    first.play(steps[:at])
    parts = first.operator.divided(first.operator.snapshot(), lambda key: "ab".index(key), {0, 1})
    assert parts is not None
    results, late = first.collect().results, first.late
    for number, part in parts.items():
        share = Run(make)
        share.restart(part)
        share.play([step for step in steps[at:] if step.key is None or "ab".index(step.key) == number])
        results, late = results + share.collect().results, late + share.late
    assert (sorted(results, key=repr), sorted(late)) == (expected[0], sorted(expected[1]))
    united = Run(make)
    united.restart(first.operator.united([parts[1], parts[0]]))
    united.play(steps[at:])
    assert sorted(first.results + united.collect().results, key=repr) == expected[0]


CUTS = st.lists(st.integers(0, 24), max_size=4)


@pytest.mark.parametrize("how", HOWS)
@given(steps=histories(), cuts=CUTS, bounds=st.tuples(st.integers(-6, 6), st.integers(-1, 8)))
def test_interval_join(how: Any, steps: list[Step], cuts: list[int], bounds: tuple[int, int]) -> None:
    lower_ms, upper_ms = bounds[0], bounds[0] + bounds[1]  # the exclusive bounds of an empty one may cross

    def make() -> MultiInput:
        return IntervalJoinOperator((key_of, key_of), lower_ms, upper_ms, how)

    check(make, steps, cuts, interval_join(steps, lower_ms, upper_ms, how))


BOUNDS = st.tuples(st.integers(-6, 6), st.integers(-6, 8)).map(sorted)


@st.composite
def flowing(draw: st.DrawFn) -> list[Step]:
    """Elements of two inputs in order of time, each followed by a watermark of both; both ends at last."""
    drawn = draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4)), min_size=2, max_size=12))
    steps, at_ms = [], 0
    for number, (side, later) in enumerate(drawn):
        at_ms += later
        steps.append(Step(side, "a", at_ms, number))
        steps += [Step(each, None, at_ms, -1) for each in (0, 1)]
    return steps + [Step(side, None, MAX_TIMESTAMP, -1) for side in (0, 1)]


@given(
    steps=flowing(),
    cut=st.integers(0, 36),
    bounds=st.tuples(BOUNDS, BOUNDS),
    hows=st.tuples(st.sampled_from(HOWS[1:]), st.sampled_from(HOWS[1:])),
)
def test_nothing_is_late_after_a_restart_with_other_bounds(
    steps: list[Step], cut: int, bounds: tuple[list[int], list[int]], hows: tuple[Any, Any]
) -> None:
    runs = iter(zip(bounds, hows, strict=True))

    def make() -> MultiInput:
        (lower_ms, upper_ms), how = next(runs)
        return IntervalJoinOperator((key_of, key_of), lower_ms, upper_ms, how)

    run = Run(make)
    run.play(steps[:cut])
    run.restart()
    run.play(steps[cut:])
    assert isinstance(run.operator.out, Recorder)
    watermark = MIN_TIMESTAMP
    for what, at_ms in run.operator.out.seen:
        if isinstance(what, tuple):
            assert at_ms >= watermark, (what, at_ms, watermark)
        elif what in (W, RESTORED):
            watermark = at_ms


@given(steps=histories(), cuts=CUTS)
def test_as_of(steps: list[Step], cuts: list[int]) -> None:
    check(lambda: AsOfOperator((key_of, key_of)), steps, cuts, as_of(steps))


class Moved(list[Any]):
    """Counts in `total` how many elements others are moved by that go before them."""

    total = 0

    def __delitem__(self, place: Any) -> None:
        super().__delitem__(place)
        Moved.total += len(self)


def watch(run: Run, key: str) -> list[list[Any]]:
    """Count from now on what is moved in the only buffer of this key; gives that."""
    (buffer,) = (rows[key] for table in run.operator.tables if (rows := table.young.get(None)))
    buffer[:] = map(Moved, buffer)
    Moved.total = 0
    return buffer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "side"),
    [
        (lambda: AsOfOperator((key_of, key_of)), 0),
        (lambda: AsOfOperator((key_of, key_of)), 1),
        (lambda: IntervalJoinOperator((key_of, key_of), 0, 1, "left"), 0),
        (lambda: IntervalJoinOperator((key_of, key_of), 0, 1, "right"), 1),
    ],
)
def test_what_goes_from_a_key_costs_the_same_however_much_there_is_behind_it(
    make: Callable[[], MultiInput], side: int
) -> None:
    def moved(elements: int, step_ms: int) -> int:
        run = Run(make)
        run.play([Step(side, "a", number, number) for number in range(elements)])
        buffer = watch(run, "a")
        for at_ms in range(0, elements, step_ms):
            run.play([Step(each, None, at_ms + step_ms - 2, -1) for each in (0, 1)])
        total = Moved.total
        run.operator.snapshot()
        assert len(buffer[0]) <= 2
        return total

    assert moved(4_000, 4_000) < 3 * moved(2_000, 2_000)
    assert moved(4_000, 1) < 3 * moved(2_000, 1)


@pytest.mark.parametrize("how", ["inner", "full"])
def test_an_element_that_takes_the_place_of_another_moves_none_of_those_between(how: Any) -> None:
    kept_ms = 2_000
    run = Run(lambda: IntervalJoinOperator((key_of, key_of), -kept_ms, 0, how))
    run.play([Step(1, "a", number, number) for number in range(kept_ms)])
    buffer = watch(run, "a")
    for number in range(kept_ms, kept_ms + 900):
        run.play([Step(1, "a", number, number), *(Step(each, None, number, -1) for each in (0, 1))])
    assert Moved.total == 0
    run.operator.snapshot()
    assert buffer[0] == list(range(900, kept_ms + 900))
    assert run.operator.metrics()["buffered"] == len(buffer[0])


def test_what_goes_when_a_driver_has_the_step_do_what_is_left_is_in_no_checkpoint() -> None:
    left: list[Iterator[None]] = []
    join = IntervalJoinOperator((key_of, key_of), -1, 0, "left")
    join.out = Recorder()
    join.open(OperatorContext(clock=ManualClock(), work_off=left.append))
    join.tables.before_cut(lambda: run_through(left.pop()))
    join.port(0).process_batch([(0, "a", at_ms) for at_ms in range(1_200)], list(range(1_200)))
    for port in join.ports:
        port.advance_watermark(500)
    buffer = join.tables.cut().deltas[join.tables["left"]].rows[None]["a"]
    assert buffer[0] == list(range(501, 1_200))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("then", [(1, 5), (0, 6), (0, 5)])
def test_what_has_gone_from_a_key_of_several_has_no_part_in_what_comes_then(
    how: Any, then: tuple[int, int]
) -> None:
    steps = [Step(0, "a", at_ms, at_ms) for at_ms in (5, 8, 9, 10)]
    steps += [Step(side, None, 5, -1) for side in (0, 1)]
    steps += [Step(then[0], "a", then[1], 0), *(Step(side, None, 7, -1) for side in (0, 1))]
    steps += [Step(side, None, MAX_TIMESTAMP, -1) for side in (0, 1)]
    expected = interval_join(steps, -3, 0, how)
    check(lambda: IntervalJoinOperator((key_of, key_of), -3, 0, how), steps, [], expected)


@pytest.mark.parametrize("made", [*HOWS, "groups"])
@given(steps=histories(), cuts=CUTS)
def test_window_join(made: Any, steps: list[Step], cuts: list[int]) -> None:
    plan = WindowPlan(TumblingWindows(0.005))

    def make() -> MultiInput:
        return WindowJoinOperator((key_of, key_of), plan, made)

    check(make, steps, cuts, window_join(steps, 5, made))
