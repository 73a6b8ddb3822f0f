"""De-duplication, the first n and rolling results against small models, with restarts and divisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asyncstream.keyed import Best, Change, ChangeLog, DeduplicateSpec, Ranks, RollingSpec, TopSpec
from asyncstream.state import TimeToLive
from tests.keyed.rig import ADVANCES, TICKS, Rig, Steps, key_of, steps, value_of

TTL_MS = 5
TTL = TimeToLive(TTL_MS / 1000)


def key_of_ranking(ranking: Any) -> Any:
    return ranking.key


class Model:
    """Plays a script on one entry for each key, which lives for a while after it was written."""

    def __init__(self, ttl_ms: float) -> None:
        self.ttl_ms = ttl_ms
        self.now_ms = 0
        self.entries: dict[str, tuple[Any, int]] = {}
        self.seen: dict[Any, list[Any]] = {}

    def get(self, key: str) -> Any:
        entry, written_ms = self.entries.get(key, (None, 0))
        return entry if written_ms + self.ttl_ms > self.now_ms else None

    def put(self, key: str, entry: Any) -> None:
        self.entries[key] = (entry, self.now_ms)

    def emit(self, key: str, value: Any, timestamp: int) -> None:
        self.seen.setdefault(key, []).append((value, timestamp))

    def play(self, script: Steps, take: Callable[[Model, Any], None]) -> dict[Any, list[Any]]:
        for kind, *arguments in script:
            if kind == "el":
                take(self, arguments[0])
            elif kind == "pt":
                self.now_ms += arguments[0]
        return self.seen


def first_by_arrival(model: Model, element: Any) -> None:
    if model.get(element[0]) is None:
        model.put(element[0], element)
        model.emit(element[0], element, element[2])


def last_by_arrival(model: Model, element: Any) -> None:
    is_news = model.get(element[0]) != element
    model.put(element[0], element)
    if is_news:
        model.emit(element[0], element, element[2])


def last_by_time(model: Model, element: Any) -> None:
    kept = model.get(element[0])
    if kept is None or element[2] >= kept[2]:
        model.put(element[0], element)
        if kept != element:
            model.emit(element[0], element, element[2])


def smallest(model: Model, element: Any) -> None:
    kept = model.get(element[0])
    if kept is None or element[1] < kept[1]:
        kept = element
    model.put(element[0], kept)
    model.emit(element[0], kept, element[2])


def joined(one: Any, other: Any) -> Any:
    return (one[0], one[1] * 3 + other[1], max(one[2], other[2]))


def joining(model: Model, element: Any) -> None:
    kept = model.get(element[0])
    kept = element if kept is None else joined(kept, element)
    model.put(element[0], kept)
    model.emit(element[0], kept, element[2])


ROLLING: list[tuple[Callable[[TimeToLive | None], Any], Callable[[Model, Any], None]]] = [
    (lambda ttl: DeduplicateSpec(key_of, "first", "arrival", ttl), first_by_arrival),
    (lambda ttl: DeduplicateSpec(key_of, "last", "arrival", ttl), last_by_arrival),
    (lambda ttl: DeduplicateSpec(key_of, "last", "event_time", ttl), last_by_time),
    (lambda ttl: RollingSpec(key_of, Best(value_of, largest=False), ttl), smallest),
    (lambda ttl: RollingSpec(key_of, joined, ttl), joining),
]


@given(steps(TICKS), st.sampled_from(ROLLING), st.booleans())
def test_one_of_each_key_is_that_of_a_dict(script: Steps, kind: Any, lives: bool) -> None:
    spec, take = kind
    found = Rig(spec(TTL if lives else None), key_of).play(script).seen
    assert found == Model(TTL_MS if lives else float("inf")).play(script, take)


@given(steps(ADVANCES))
def test_the_first_by_event_time_is_the_earliest_that_was_not_late(script: Steps) -> None:
    rig = Rig(DeduplicateSpec(key_of, "first", "event_time"), key_of, sides=["late"])
    found = rig.play(script).end().seen
    watermark, at_hand, expected, late = 0, dict[str, Any](), dict[str, Any](), []
    for kind, *arguments in [*script, ("wm", 1_000)]:
        if kind == "wm":
            watermark += arguments[0]
            for key, element in list(at_hand.items()):
                if element[2] <= watermark:
                    expected[key] = [(at_hand.pop(key), element[2])]
        elif kind == "el":
            element = arguments[0]
            if element[0] in expected:
                continue
            if element[2] < watermark:
                late.append((element, element[2]))
            elif element[0] not in at_hand or element[2] < at_hand[element[0]][2]:
                at_hand[element[0]] = element
    assert found == expected
    assert sorted(rig.aside["late"]) == sorted(late)


ORDERS = st.sampled_from(["ascending", "descending"])


@given(steps(TICKS), ORDERS, st.integers(1, 3), st.integers(0, 2), st.booleans())
def test_a_ranking_is_what_sorting_gives(script: Steps, order: Any, n: int, skip: int, lives: bool) -> None:
    spec = TopSpec(key_of, Ranks(value_of, order, skip + 1, skip + n), TTL if lives else None)
    found = Rig(spec, key_of_ranking).play(script).seen

    def take(model: Model, element: Any) -> None:
        rows = model.get(element[0]) or []
        ranked = sorted([*rows, element], key=value_of, reverse=order == "descending")[: skip + n]
        if not any(element is row for row in ranked):
            return
        model.put(element[0], ranked)
        if len(ranked) > skip:
            model.emit(element[0], (element[0], ranked[skip:]), element[2])

    assert found == Model(TTL_MS if lives else float("inf")).play(_told_apart(script), take)


def _told_apart(script: Steps) -> Steps:
    """Equal elements as objects of their own."""
    return [(step[0], (step[1][0], step[1][1], step[1][2])) if step[0] == "el" else step for step in script]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30),
    ORDERS,
    st.integers(1, 3),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
)
def test_a_reader_of_the_change_log_holds_the_ranking(
    taken: Any, order: Any, n: int, skip: int, ranked: bool, before: bool
) -> None:
    """Rows come, and are taken back if they are there."""
    ranks = Ranks(lambda row: row[1], order, skip + 1, skip + n)
    spec = TopSpec(lambda change: "k", ranks, None, ChangeLog(before, True), ranked or skip > 0, True)
    rows: list[Any] = []
    held: dict[int, Any] = {}
    loose: list[Any] = []
    rig = Rig(spec, lambda change: "k")
    for number, (value, goes) in enumerate(taken):
        row = ("k", value, number)
        gone = next((old for old in rows if old[1] == value), None) if goes else None
        change = Change("+I", row) if gone is None else Change("-D", gone)
        rows = [*rows, row] if gone is None else [old for old in rows if old is not gone]
        rig.push(change)
        rig.play([("restart",)] if number % 7 == 3 else [])
        for emitted, _ in rig.seen.pop("k", []):
            if emitted.rank is not None:
                if emitted.kind in ("+I", "+U"):
                    assert (emitted.rank in held) == (emitted.kind == "+U")
                    held[emitted.rank] = emitted.value
                elif emitted.kind == "-D":
                    assert held.pop(emitted.rank) == emitted.value
                else:
                    assert before
                    assert held[emitted.rank] == emitted.value
            elif emitted.kind == "+I":
                loose.append(emitted.value)
            else:
                loose.remove(emitted.value)
        expected = sorted(rows, key=lambda row: row[1], reverse=order == "descending")[skip : skip + n]
        if ranked or skip:
            assert [held[rank] for rank in sorted(held)] == expected
        else:
            assert sorted(loose) == sorted(expected)
