"""Patterns: contiguity, repetition, time and skipping, by example and against a search of all sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import Match, Pattern, PatternMatches, Pipeline, PipelineError, Stream, UserFunctionError
from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.keyed import MatchingSpec
from asyncstream.testing import harness
from tests.keyed.rig import ADVANCES, Rig, Steps, key_of, steps
from tests.operators.recorder import record
from tests.tiers import examples


def letter(wanted: str) -> Any:
    return lambda event: event[0] == wanted


def abc() -> Pattern[str]:
    return Pattern.begin("a", letter("a")).followed_by("b", letter("b"))


def found(pattern: Pattern[str], events: str, **options: Any) -> list[str]:
    """The matches in events of one key, a second from one to the next, as "a1 b2"."""

    def define(stream: Stream[Any]) -> Stream[Any]:
        return stream.key_by(lambda _: 0).pattern(pattern, **options)

    with harness(define) as tested:
        for second, event in enumerate(events.split()):
            tested.push(event, at=second * 1_000)
        tested.end()
        return [" ".join(e for stage in m.elements.values() for e in stage) for m in tested.collect()]


A, B, C = letter("a"), letter("b"), letter("c")
BEGIN: Pattern[str] = Pattern.begin("a", A)

EXAMPLES: list[tuple[Pattern[str], str, list[str]]] = [
    (BEGIN.next("b", B), "a1 b1 a2 c1 b2", ["a1 b1"]),
    (BEGIN.followed_by("b", B), "a1 c1 b1 b2", ["a1 b1"]),
    (BEGIN.followed_by("b", B), "a1 a2 b1", ["a1 b1", "a2 b1"]),
    (BEGIN.times(2), "a1 c1 a2 a3", ["a1 a2", "a2 a3"]),
    (BEGIN.times(2, consecutive=True), "a1 c1 a2 a3", ["a2 a3"]),
    (BEGIN.times(1, 2), "a1 a2", ["a1", "a1 a2", "a2"]),
    (BEGIN.followed_by("b", B).at_least(1).followed_by("c", C), "a1 b1 b2 c1", ["a1 b1 b2 c1", "a1 b1 c1"]),
    (BEGIN.followed_by("b", B).at_least(2).next("c", C), "a1 b1 b2 b3 c1", ["a1 b1 b2 b3 c1"]),
    (BEGIN.followed_by("b", B).at_least(1).followed_by("c", C), "a1 b1 x b2 c1", ["a1 b1 b2 c1", "a1 b1 c1"]),
    (BEGIN.within(2).followed_by("b", B), "a1 c1 b1", []),
    (BEGIN.within(2.001).followed_by("b", B), "a1 c1 b1", ["a1 b1"]),
    (BEGIN.followed_by("b", B).optional().followed_by("c", C), "a1 x b1 c1", ["a1 b1 c1", "a1 c1"]),
    (BEGIN.followed_by("b", B).optional(), "a1 b1", ["a1", "a1 b1"]),
    (
        BEGIN.followed_by("b", B).optional().followed_by("c", C).optional().followed_by("d", letter("d")),
        "a1 x c1 b1 d1",
        ["a1 c1 d1", "a1 b1 d1", "a1 d1"],  # what took c1 is before what passed it over
    ),
    (BEGIN.optional().next("b", B).optional().next("c", C), "b1 c1", ["b1 c1", "c1"]),
    (BEGIN.next("b", B).times(2).optional().next("c", C), "a1 b1 c1 a2 c2", ["a2 c2"]),
    (BEGIN.not_next("b", B).followed_by("c", C), "a1 b1 c1 a2 x b2 c2", ["a2 c2"]),
    (BEGIN.not_next("c", C).followed_by("c2", C), "a1 c1 a2 x c2", ["a2 c2"]),
    (BEGIN.not_followed_by("b", B).followed_by("c", C), "a1 x b1 c1 a2 x c2", ["a2 c2"]),
    (BEGIN.not_followed_by("c", C).followed_by("c2", C), "a1 x c1", ["a1 c1"]),
    (BEGIN.at_least(1).not_followed_by("b", B).next("c", C), "a1 b1 a2 c1", ["a1 a2 c1", "a2 c1"]),
    (BEGIN.not_followed_by("b", B).within(3), "a1 x b1 a2 x x b2", ["a2"]),
    (BEGIN.not_followed_by("b", B).followed_by("c", C).times(2), "a1 c1 b1 c2", ["a1 c1 c2"]),
    (BEGIN.at_least(1).not_followed_by("b", B).within(3), "a1 x x x", ["a1"]),
    (BEGIN.at_least(1).not_followed_by("b", B).within(3), "a1 b1 x x", []),
    (BEGIN.times(1, 2).not_followed_by("b", B).within(3), "a1 b1 a2 a3", ["a1 a2", "a2 a3", "a2", "a3"]),
]


@pytest.mark.parametrize(("pattern", "events", "expected"), EXAMPLES)
def test_matches_are(pattern: Pattern[str], events: str, expected: list[str]) -> None:
    assert found(pattern, events) == expected


def test_nothing_that_began_before_the_end_of_a_match_counts_if_it_skips() -> None:
    pattern = BEGIN.at_least(1).followed_by("b", B)
    of_b1, of_b2 = ["a1 a2 b1", "a1 b1", "a2 b1"], ["a1 a2 a3 b2", "a2 a3 b2", "a3 b2"]
    assert found(pattern, "a1 a2 b1 a3 b2") == [*of_b1, *of_b2]
    assert found(pattern, "a1 a2 b1 a3 b2", skip="past_last_event") == ["a1 a2 b1", "a3 b2"]


def test_what_is_absent_for_long_enough_is_told_when_its_time_is_over() -> None:
    unpaid = BEGIN.not_followed_by("b", B).within(10)
    with harness(lambda stream: stream.key_by(lambda _: 0).pattern(unpaid)) as tested:
        tested.push("a1", at=1_000)
        tested.push("a2", at=4_000)
        tested.advance(10_999)
        assert tested.collect() == []
        tested.advance(12_000)
        [match] = tested.collect()
        assert (match.elements, match.start_ms, match.end_ms) == ({"a": ["a1"]}, 1_000, 1_000)
        tested.push("b1", at=13_000)
        tested.end()
        assert tested.collect() == []
        assert tested.collect("timed_out") == []


def test_a_match_at_the_end_of_its_time_carries_that_time() -> None:
    spec = MatchingSpec(key_of, Pattern.begin("a", wants({1})).not_followed_by("b", wants({0})).within(0.004))
    script: Steps = [("el", ("a", 1, 2)), ("wm", 9)]
    seen = Rig(spec, key_of_match).play(script).end().seen["a"]
    assert [timestamp for _, timestamp in seen] == [6]


def test_a_match_at_the_end_of_its_time_gives_up_what_began_in_it() -> None:
    pattern = BEGIN.times(2).not_followed_by("b", B).within(4)
    assert found(pattern, "a1 a2 a3 a4 x x x") == ["a1 a2", "a2 a3", "a3 a4"]
    assert found(pattern, "a1 a2 a3 a4 x x x", skip="past_last_event") == ["a1 a2", "a3 a4"]


def test_what_began_after_the_end_of_a_match_counts_also_at_the_same_time() -> None:
    pattern = BEGIN.not_followed_by("b", B).within(4)
    with harness(lambda s: s.key_by(lambda _: 0).pattern(pattern, skip="past_last_event")) as tested:
        for event in ("a1", "a2", "c1", "a3"):
            tested.push(event, at=1_000)
        tested.advance(1_000)
        tested.restart()
        tested.end()
        assert [match.elements["a"] for match in tested.collect()] == [["a1"], ["a2"], ["a3"]]


def test_a_condition_on_what_is_absent_may_look_at_what_was_taken() -> None:
    pattern = BEGIN.not_followed_by("same", given=lambda event, taken: event[1] == taken["a"][0][1])
    assert found(pattern.followed_by("c", C), "a1 b2 c2 a3 b3 c3") == ["a1 c2"]


def test_a_condition_may_look_at_what_was_taken() -> None:
    rises: Pattern[str] = Pattern.begin("low", lambda event: True).next(
        "high", given=lambda event, taken: event > taken["low"][-1]
    )
    assert found(rises, "1 3 2 5") == ["1 3", "2 5"]


def test_elements_are_matched_in_the_order_of_event_time() -> None:
    with harness(lambda stream: stream.key_by(lambda _: 0).pattern(abc())) as tested:
        tested.push("b1", at=20)
        tested.push("a1", at=10)
        tested.push("b2", at=20)
        tested.advance(19)
        assert tested.collect() == []
        tested.restart()
        tested.advance(20)
        assert tested.collect(timestamps=True) == [(Match(0, {"a": ["a1"], "b": ["b1"]}, 10, 20), 20)]
        tested.push("a2", at=20)
        assert tested.collect("late") == ["a2"]


def test_next_checkpoint_has_nothing_of_what_has_begun_and_waits_as_it_did() -> None:
    operator = MatchingSpec(lambda event: 0, abc()).build()
    seen = record(operator)

    def written(event: str, at_ms: int) -> list[str]:
        operator.process(event, at_ms)
        operator.advance_watermark(at_ms)
        changed = [
            table.name for table, delta in operator.tables.cut().deltas.items() if any(delta.rows.values())
        ]
        operator.tables.merge()
        return changed

    assert written("a1", 1) == written("x1", 2) == ["state/runs"]
    assert written("x2", 3) == written("x3", 4) == []
    assert written("a2", 5) == ["state/runs"]
    written("b1", 6)
    assert [match.elements for match in seen.values()] == [
        {"a": ["a1"], "b": ["b1"]},
        {"a": ["a2"], "b": ["b1"]},
    ]
    assert len(operator.tables["state/runs"]) == 0


def test_what_is_not_whole_in_time_is_told_once_and_at_that_time() -> None:
    pattern = abc().within(0.05).times(2)
    with harness(lambda stream: stream.key_by(lambda _: 0).pattern(pattern)) as tested:
        tested.push("a1", at=10)
        tested.push("b1", at=59)
        tested.advance(59)
        tested.restart()
        tested.push("b2", at=60)
        tested.advance(59)
        assert tested.collect("timed_out") == []
        tested.advance(100)
        assert tested.collect() == []
        beginning = Match(0, {"a": ["a1"], "b": ["b1"]}, 10, 59)
        assert tested.collect("timed_out", timestamps=True) == [(beginning, 60)]
        assert next(iter(tested.metrics().values()))["timed_out"] == 1
        assert next(iter(tested.metrics().values()))["state_entries"] == 0


@pytest.mark.parametrize(
    ("pattern", "events", "expected"),
    [
        (BEGIN.followed_by("b", B).optional().followed_by("c", C), "a1 b1 x", ["a1 b1", "a1"]),
        (BEGIN.followed_by("b", B).optional().followed_by("c", C), "a1 x", ["a1", "a1"]),
        (BEGIN.followed_by("b", B).optional(), "a1 x", []),
        (BEGIN.at_least(1).not_followed_by("b", B), "a1 x b1", []),
    ],
)
def test_what_times_out_is_no_match_and_is_told_for_each_way_on(
    pattern: Pattern[str], events: str, expected: list[str]
) -> None:
    with harness(lambda stream: stream.key_by(lambda _: 0).pattern(pattern.within(60))) as tested:
        for second, event in enumerate(events.split()):
            tested.push(event, at=second * 1_000)
        tested.end()
        told = tested.collect("timed_out")
    assert [" ".join(e for stage in m.elements.values() for e in stage) for m in told] == expected


def test_what_has_begun_near_the_end_of_time_is_over_with_it() -> None:
    with harness(lambda stream: stream.key_by(lambda _: 0).pattern(abc().within(0.05))) as tested:
        tested.push("a1", at=MAX_TIMESTAMP - 20)
        tested.push("b1", at=MAX_TIMESTAMP)
        tested.push("a2", at=MAX_TIMESTAMP)
        tested.advance(MAX_TIMESTAMP - 10)
        tested.end()
        whole = Match(0, {"a": ["a1"], "b": ["b1"]}, MAX_TIMESTAMP - 20, MAX_TIMESTAMP)
        assert tested.collect() == [whole]
        beginning = Match(0, {"a": ["a2"]}, MAX_TIMESTAMP, MAX_TIMESTAMP)
        assert tested.collect("timed_out", timestamps=True) == [(beginning, MAX_TIMESTAMP)]


def test_a_match_that_could_have_grown_did_not_time_out() -> None:
    with harness(lambda stream: stream.key_by(lambda _: 0).pattern(BEGIN.at_least(1).within(5))) as tested:
        tested.push("a1", at=0)
        tested.end()
        assert len(tested.collect()) == 1
        assert tested.collect("timed_out") == []


def test_a_time_that_has_become_longer_holds_for_what_has_begun() -> None:
    """A beginning outlives the timer that was set for it."""
    short = MatchingSpec(lambda _: 0, abc().within(1)).build
    long = MatchingSpec(lambda _: 0, abc().within(100)).build
    with harness(short) as tested, harness(long) as after:
        tested.push("a1", at=0)
        tested.advance(0)
        after.restore(tested.snapshot())
        after.advance(1_000)
        after.push("b1", at=50_000)
        after.advance(50_000)
        assert len(after.collect()) == 1
        after.push("a2", at=60_000)
        after.advance(160_000)
        assert len(after.collect("timed_out")) == 1


@pytest.mark.parametrize("before", [None, 100])
def test_a_time_that_has_become_shorter_holds_for_what_has_begun(before: float | None) -> None:
    """No other element of the key need come."""
    long = abc() if before is None else abc().within(before)
    with (
        harness(MatchingSpec(lambda _: 0, long).build) as tested,
        harness(MatchingSpec(lambda _: 0, abc().within(1)).build) as after,
        harness(MatchingSpec(lambda _: 0, abc().within(1)).build) as again,
    ):
        tested.push("a1", at=10)
        tested.advance(600)
        after.restore(tested.snapshot())
        after.advance(1_009)
        assert after.collect("timed_out") == []
        again.restore(after.snapshot())
        again.advance(1_010)
        beginning = Match(0, {"a": ["a1"]}, 10, 10)
        assert again.collect("timed_out", timestamps=True) == [(beginning, 1_010)]


def test_what_was_over_before_it_became_so_is_not_told_behind_the_watermark() -> None:
    with (
        harness(MatchingSpec(lambda _: 0, abc().within(100)).build) as tested,
        harness(MatchingSpec(lambda _: 0, abc().within(1)).build) as after,
    ):
        tested.push("a1", at=0)
        tested.advance(5_000)
        after.restore(tested.snapshot())
        after.advance(5_100)
        assert after.collect("timed_out", timestamps=True) == [(Match(0, {"a": ["a1"]}, 0, 0), 5_001)]


def test_a_condition_that_fails_names_the_element() -> None:
    with harness(lambda stream: stream.key_by(lambda _: 0).pattern(Pattern.begin("a", "missing"))) as tested:
        tested.push("a1", at=0)
        with pytest.raises(UserFunctionError, match="'a1'"):
            tested.advance(0)


async def later(event: Any) -> bool:
    return True


def test_a_condition_that_gives_a_coroutine_is_refused() -> None:
    pattern: Pattern[Any] = Pattern.begin("a", lambda event: later(event))
    with harness(lambda stream: stream.key_by(lambda _: 0).pattern(pattern)) as tested:
        tested.push("a1", at=0)
        with pytest.raises(UserFunctionError, match="a condition is a plain function"):
            tested.advance(0)


WRONG: list[tuple[Any, str]] = [
    (lambda s: s.pattern([1]), "pattern: expected a Pattern, got"),
    (lambda s: s.pattern(BEGIN, skip="all"), "skip: expected one of 'none', 'past_last_event'"),
    (lambda s: BEGIN.next("a", A), "need names of their own, got 'a' twice"),
    (lambda s: BEGIN.next("b"), "stage 'b': expected either where or given"),
    (lambda s: BEGIN.next("b", B, given=B), "stage 'b': expected either where or given"),
    (lambda s: Pattern(cast(Any, "a"), B), r"stages: expected .* begin a pattern with Pattern.begin\("),
    (lambda s: Pattern(()), r"stages: expected a tuple of at least one Stage, got \(\); begin a pattern"),
    (lambda s: BEGIN.next("", B), "name of a stage: expected a non-empty text"),
    (lambda s: BEGIN.next("b", later), "where: expected a plain function"),
    (lambda s: BEGIN.times(0), "least of times: expected an integer of at least 1"),
    (lambda s: BEGIN.times(3, 2), "most of times: expected an integer of at least 3"),
    (lambda s: BEGIN.times(3).at_least(1), "stage 'a' has been told how many"),
    (lambda s: BEGIN.within(0), "within: expected a positive duration"),
    (lambda s: Pattern(BEGIN.stages, -1), "within_ms: expected an integer of at least 1, got -1"),
    (lambda s: BEGIN.not_next("b", B).times(2), "stage 'b' must be absent; it takes no elements"),
    (lambda s: BEGIN.not_next("b", B).optional(), "stage 'b' cannot be optional"),
    (lambda s: BEGIN.not_next("b", B).next("c", C).optional(), "stage 'c' cannot be optional"),
    (lambda s: BEGIN.optional().not_next("b", B), "stage 'b' cannot be absent behind the optional 'a'"),
    (lambda s: s.pattern(BEGIN.not_next("b", B)), "ends with not_next 'b'; add the stage that follows"),
    (lambda s: s.pattern(BEGIN.not_followed_by("b", B)), "ends with not_followed_by 'b'; say with .within"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_is_refused_when_it_is_typed(wrong: Any, message: str) -> None:
    stream: Stream[str] = Pipeline("p").source(["a"])
    with pytest.raises(PipelineError, match=message):
        wrong(stream.key_by(str.upper))


def test_what_has_begun_is_of_use_to_the_same_stages_only() -> None:
    def form(pattern: Pattern[str]) -> Any:
        return MatchingSpec(str.upper, pattern).schema.form

    others = [abc().optional(), abc().times(2), Pattern.begin("a", A).next("b", B), BEGIN.followed_by("c", B)]
    assert form(abc()) == form(abc())
    assert form(abc()) not in map(form, others)


def test_side_outputs_have_names() -> None:
    stream: Stream[str] = Pipeline("p").source(["a"])
    matches = stream.key_by(str.upper).pattern(BEGIN)
    assert isinstance(matches, PatternMatches)
    with pytest.raises(PipelineError, match="tag: expected one of 'late', 'timed_out'"):
        matches.side("other")


# ---------------------------------------------------------------------- against a search of all sequences

STAGES = st.tuples(
    st.sampled_from(["next", "followed_by", "next", "followed_by", "not_next", "not_followed_by"]),
    st.frozensets(st.integers(0, 2), max_size=2),  # what the stage wants
    st.sampled_from([(1, 1), (2, 2), (1, 2), (1, None), (2, None)]),
    st.booleans(),  # consecutive
    st.booleans(),  # optional
)


def key_of_match(match: Any) -> Any:
    return match.key


def pattern_of(drawn: list[Any], within: float | None) -> Pattern[Any]:
    pattern: Pattern[Any] | None = None
    for number, (kind, wanted, (least, most), consecutive, optional) in enumerate(drawn):
        name, where = f"s{number}", wants(wanted)
        before = None if pattern is None else pattern.stages[-1]
        if pattern is None or before is None:
            pattern = Pattern.begin(name, where)
        elif kind.startswith("not") and not before.optional:
            pattern = getattr(pattern, kind)(name, where)
            continue
        else:
            pattern = getattr(pattern, kind.removeprefix("not_"))(name, where)
        if (least, most) != (1, 1):
            pattern = (
                pattern.at_least(least, consecutive=consecutive)
                if most is None
                else pattern.times(least, most, consecutive=consecutive)
            )
        if optional and not (before is not None and before.absent):
            pattern = pattern.optional()
    assert pattern is not None
    last = pattern.stages[-1]
    if last.absent and (last.strict or within is None):
        pattern = pattern.next("last", wants({0, 1}))
    return pattern if within is None else pattern.within(within)


def wants(wanted: Any) -> Any:
    return lambda element: element[1] in wanted


def sequences(pattern: Pattern[Any], events: list[Any]) -> list[Any]:
    """All matches, each a list of (position, stage), in the order of their last elements."""
    search = _Search(pattern, events)
    found = [taken for first in range(len(events)) for taken in search.matches([], first)]
    return sorted(found, key=lambda taken: (taken[-1][0], taken))


class _Search:
    def __init__(self, pattern: Pattern[Any], events: list[Any]) -> None:
        self.within_ms, self.events = pattern.within_ms, events
        self.stages = [stage for stage in pattern.stages if not stage.absent]
        self.absent: list[list[Any]] = [[] for _ in range(len(self.stages) + 1)]
        number = 0
        for stage in pattern.stages:
            if stage.absent:
                self.absent[number].append(stage)
            else:
                number += 1

    def matches(self, taken: list[tuple[int, int]], start: int) -> Iterator[Any]:
        """Those that go on from what was taken; with nothing taken, those that begin at `start`."""
        if taken and self.is_match(taken):
            yield taken
        for position in range(start, len(self.events) if taken else start + 1):
            if taken and not self.is_in_time(taken, position):
                return
            for stage, between_is in self.ways(taken):
                where = self.stages[stage].where
                assert where is not None
                if where(self.events[position]) and between_is(position):
                    yield from self.matches([*taken, (position, stage)], position + 1)

    def is_in_time(self, taken: Any, position: int) -> bool:
        passed_ms = self.events[position][2] - self.events[taken[0][0]][2]
        return self.within_ms is None or passed_ms < self.within_ms

    def count(self, taken: Any) -> int:
        return sum(stage == taken[-1][1] for _, stage in taken)

    def is_match(self, taken: Any) -> bool:
        position, number = taken[-1]
        if self.count(taken) < self.stages[number].least:
            return False
        following = range(position + 1, len(self.events))
        between = [self.events[at] for at in following if self.is_in_time(taken, at)]
        for absent in self.absent[-1]:
            if any(map(absent.where, between[:1] if absent.strict else between)):
                return False
        return all(stage.optional for stage in self.stages[number + 1 :])

    def ways(self, taken: Any) -> Iterator[Any]:
        """Stages that may take the next element, each with what says whether they may at a position."""
        number = -1
        if taken:
            _, number = taken[-1]
            stage, count = self.stages[number], self.count(taken)
            if stage.most is None or count < stage.most:
                yield number, self.between(taken, number, stage.consecutive, [])
            if count < stage.least:
                return
        while (number := number + 1) < len(self.stages):
            stage = self.stages[number]
            yield number, self.between(taken, number, stage.strict, self.absent[number])
            if not stage.optional:
                return

    def between(self, taken: Any, number: int, strict: bool, absent: list[Any]) -> Any:
        def is_right(position: int) -> bool:
            if not taken:
                return True
            after = taken[-1][0] + 1
            between = self.events[after:position]
            where = self.stages[number].where
            assert where is not None
            if between if strict else any(map(where, between)):
                return False
            looked_at = {
                stage: self.events[after : after + 1] if stage.strict else between for stage in absent
            }
            return not any(stage.where(event) for stage, some in looked_at.items() for event in some)

        return is_right


@given(
    steps(ADVANCES),
    st.lists(STAGES, min_size=1, max_size=4),
    st.sampled_from([None, 0.004, 0.012]),
    st.booleans(),
)
def test_matches_are_those_that_a_search_finds(
    script: Steps, drawn: Any, within: float | None, skips: bool
) -> None:
    pattern = pattern_of(drawn, within)
    script = script[:24]
    spec = MatchingSpec(key_of, pattern, "past_last_event" if skips else "none")
    rig = Rig(spec, key_of_match, sides=["late", "timed_out"]).play(script).end()
    late = [element for element, _ in rig.aside["late"]]
    elements = [step[1] for step in script if step[0] == "el"]
    for element in late:
        elements.reverse()
        elements.remove(element)
        elements.reverse()
    for key in "abc":
        events = sorted((one for one in elements if one[0] == key), key=lambda one: one[2])
        expected = sequences(pattern, events)
        if pattern.stages[-1].absent:  # their order is that of their beginnings; what took more is first
            expected.sort(key=lambda taken: (events[taken[0][0]][2], [*taken, (len(events), 0)]))
        if skips:
            expected = list(_skipping(expected))
        shown = [[events[position] for position, _ in taken] for taken in expected]
        matches = [match for match, _ in rig.seen.get(key, [])]
        assert [[e for stage in match.elements.values() for e in stage] for match in matches] == shown
        assert [(match.start_ms, match.end_ms) for match in matches] == [(m[0][2], m[-1][2]) for m in shown]


def _skipping(matches: list[Any]) -> Iterator[Any]:
    """Without those that began before the end of one that was given."""
    end = -1
    for taken in matches:
        if taken[0][0] > end:
            end = taken[-1][0]
            yield taken


@settings(max_examples=examples(200))
@given(st.lists(st.integers(0, 3), max_size=7), st.lists(STAGES, min_size=1, max_size=4), st.integers(0, 7))
def test_every_way_through_one_key_is_found_once(values: list[int], drawn: Any, restart: int) -> None:
    """Elements one after the other, so that all of contiguity and repetition comes up."""
    pattern = pattern_of(drawn, None)
    events = [("a", value, second) for second, value in enumerate(values)]
    script: Steps = []
    for event in events:
        script += [("el", event), ("wm", 1)]
        if event[2] == restart:
            script.append(("restart",))
    rig = Rig(MatchingSpec(key_of, pattern), key_of_match)
    rig.watermark = -1
    found = [match for match, _ in rig.play(script).end().seen.get("a", [])]
    expected = sequences(pattern, events)
    shown = [[element[2] for stage in match.elements.values() for element in stage] for match in found]
    assert shown == [[position for position, _ in taken] for taken in expected]
