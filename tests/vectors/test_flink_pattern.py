"""What Flink's CEP finds, case by case."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from asyncstream import Pattern
from asyncstream.clock import ManualClock
from asyncstream.keyed import Match, MatchingSpec
from asyncstream.operators.base import Operator, OperatorContext
from tests.on_disk import IN_MEMORY_AND_ON_DISK, bring_away, keep_on_disk
from tests.vectors.cases import Case, cases
from tests.vectors.driver import Log

CASES = [
    *cases("flink_pattern.jsonl", "pattern"),
    *cases("flink_pattern_parts.jsonl", "pattern"),
]


def key_of(element: Any) -> Any:
    return element[0]


def at_most(wanted: int) -> Any:
    return lambda element: element[1][0] <= wanted


def one_of(wanted: list[int]) -> Any:
    return lambda element: element[1][0] in wanted


def pattern_of(case: Case) -> Pattern[Any]:
    pattern: Pattern[Any] | None = None
    for stage in case["stages"]:
        name = stage["name"]
        where = one_of(stage["in"]) if "in" in stage else at_most(stage["wanted"])
        kind = stage.get("kind") or ("next" if stage["strict"] else "followed_by")
        pattern = Pattern.begin(name, where) if pattern is None else getattr(pattern, kind)(name, where)
        assert pattern is not None
        if kind.startswith("not"):
            continue
        least, most, consecutive = stage["least"], stage["most"], stage["consecutive"]
        if most is None:
            pattern = pattern.at_least(least, consecutive=consecutive)
        elif most > 1:
            pattern = pattern.times(least, most, consecutive=consecutive)
        if stage.get("optional"):
            pattern = pattern.optional()
    assert pattern is not None
    return pattern if case["within"] is None else pattern.within(case["within"] / 1000)


class Matches(Log):
    """Writes down matches as cases have them: the key, and by stage the numbers of elements."""

    def process_batch(self, values: Any, timestamps: Any) -> None:
        shown = [
            [match.key, {name: [number for _, (_, number) in some] for name, some in match.elements.items()}]
            if isinstance(match, Match)
            else list(match)
            for match in values
        ]
        super().process_batch(shown, timestamps)


def run(case: Case, *, on_disk: bool) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    where: dict[str, Any] = {"op": -1}
    spec = MatchingSpec(key_of, pattern_of(case), case["skip"])

    def opened() -> Operator:
        operator = spec.build()
        operator.out = Matches("out", records, where)
        operator.side = {tag: Matches(tag, records, where) for tag in ("late", "timed_out")}
        if on_disk:
            keep_on_disk(operator)
        operator.open(OperatorContext(clock=ManualClock()))
        return operator

    operator = opened()
    for number, step in enumerate(case["ops"]):
        where["op"] = number
        if "el" in step:
            key, (value, place), timestamp = step["el"]
            operator.process((key, (value, place)), timestamp)
        elif "wm" in step:
            operator.advance_watermark(step["wm"])
        else:
            kept = operator.snapshot()
            operator = opened()
            operator.restore(kept)
        if on_disk:
            bring_away(operator.tables)
    return records


def told(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["op"], str(record["out"]), record["ts"]


def ends_absent(case: Case) -> bool:
    return bool(case["stages"][-1].get("kind") == "not_followed_by")


def is_match(case: Case, elements: dict[str, list[int]]) -> bool:
    """Whether what has timed out was a match before, and might have become a longer one."""
    last = case["stages"][-1]
    return bool(len(elements.get(last["name"], ())) >= last["least"])


@pytest.mark.parametrize("case", CASES)
@IN_MEMORY_AND_ON_DISK
def test_finds_what_flink_finds(case: Case, on_disk: bool) -> None:
    records = run(case, on_disk=on_disk)
    found = [r for r in records if "out" in r]
    expected = [r for r in case["expected"] if "out" in r]
    if ends_absent(case):
        # Flink tells these when it next looks at the key
        assert Counter(str(r["out"]) for r in found) == Counter(str(r["out"]) for r in expected)
    else:
        assert Counter(map(told, found)) == Counter(map(told, expected))
    late = [(r["op"], r["late"][0], list(r["late"][1]), r["ts"]) for r in records if "late" in r]
    sides = [r for r in case["expected"] if "side" in r]
    assert late == [(r["op"], *r["side"], r["ts"]) for r in sides if r["tag"] == "late"]
    if "kind" in case["stages"][0]:
        return  # what was a match already is told there, too
    # of these Flink may tell later than it was certain, or never, if no element of the key follows
    over = Counter((str(r["timed_out"]), r["ts"]) for r in records if "timed_out" in r)
    gone = [r for r in sides if r["tag"] == "timed_out" and not is_match(case, r["side"][1])]
    assert over >= Counter((str(r["side"]), r["ts"]) for r in gone)
