"""What Flink's deduplication and Top-N in SQL do, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from asyncstream.clock import ManualClock
from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.keyed import INSERT, Change, ChangeLog, DeduplicateSpec, Ranks, TopSpec
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.spec import Spec
from asyncstream.state import TimeToLive
from tests.on_disk import IN_MEMORY_AND_ON_DISK, bring_away, keep_on_disk
from tests.operators.recorder import Recorder, W
from tests.vectors.canonical import canonical
from tests.vectors.cases import Case, cases

FILE = "flink_dedup_topn.jsonl"

Row = tuple[Any, Any, int]
"""Key, value and row time."""

VARIANTS: dict[str, tuple[Any, Any]] = {
    "first_on_watermark": ("first", "event_time"),
    "first_by_time": ("first", "event_time"),
    "last_by_time": ("last", "event_time"),
    "first_by_arrival": ("first", "arrival"),
    "last_by_arrival": ("last", "arrival"),
}


def key_of(row: Row) -> Any:
    return row[0]


def key_of_change(change: Change[Row]) -> Any:
    return change.value[0]


def value_of(row: Row) -> Any:
    return row[1]


def spec_of(case: Case) -> Spec:
    ttl = TimeToLive(case["ttl"] / 1000) if case["ttl"] else None
    before, insert = case.get("update_before", True), case.get("insert", True)
    log = None if case["variant"] == "first_on_watermark" else ChangeLog(before, insert)
    if case["kind"] == "dedup":
        return DeduplicateSpec(key_of, *VARIANTS[case["variant"]], ttl, log)
    ranks = Ranks(value_of, case["order"], case["from"], case["to"])
    retracts = case["variant"] == "retractable"
    return TopSpec(key_of_change if retracts else key_of, ranks, ttl, log, case["rank_number"], retracts)


def element_of(case: Case, key: Any, value: Any, timestamp: int, kind: Any = INSERT) -> Any:
    row = (key, value, timestamp)
    return Change(kind, row) if case["variant"] == "retractable" else row


def shown(value: Any) -> list[Any]:
    change = value if isinstance(value, Change) else Change(INSERT, value)
    return [change.kind, *change.value, *([] if change.rank is None else [change.rank])]


def play(case: Case, *, on_disk: bool) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The transcript of a case and the counts at its end."""
    records: list[dict[str, Any]] = []
    clock, spec = ManualClock(), spec_of(case)
    waits = case["variant"] == "first_on_watermark"

    def opened() -> tuple[Operator, Recorder]:
        operator, recorder = spec.build(), Recorder()
        operator.out = recorder
        if on_disk:
            keep_on_disk(operator)
        operator.open(OperatorContext(clock=clock))
        return operator, recorder

    operator, recorder = opened()
    watermark = MIN_TIMESTAMP
    for number, step in enumerate(case["ops"]):
        if "el" in step:
            operator.process(element_of(case, *step["el"]), step["el"][2])
        elif "wm" in step:
            if step["wm"] > watermark:  # else Flink's valve in front ignores it
                watermark = step["wm"]
                operator.advance_watermark(watermark)
        elif "pt" in step:
            clock.set_ms(step["pt"])
            operator.advance_clock(step["pt"])
        elif "restart" in step:
            kept = operator.snapshot()
            operator, recorder = opened()
            watermark = MIN_TIMESTAMP
            operator.restore(kept)
        else:
            records.append({"op": number, "probe": counts(case, operator)})
        for value, timestamp in recorder.seen:
            if value == W:
                records.append({"op": number, "wm": timestamp})
                continue
            call = {"t": ["e", timestamp], "cb": len(records)} if waits else {}
            records.append({"op": number, **call, "out": shown(value), "ts": timestamp})
        recorder.seen.clear()
        if on_disk:
            bring_away(operator.tables)
    return records, counts(case, operator)


def counts(case: Case, operator: Operator) -> dict[str, int]:
    if case["kind"] == "topn":
        return {}  # not recorded: state is kept otherwise there
    metrics = operator.metrics()
    return {"state": metrics["state_entries"], "event_timers": metrics.get("event_timers", 0)}


@IN_MEMORY_AND_ON_DISK
@pytest.mark.parametrize("case", cases(FILE, "dedup", "topn"))
def test_does_what_flink_does(case: Case, on_disk: bool) -> None:
    records, final = play(case, on_disk=on_disk)
    assert canonical(case, records) == canonical(case, case["expected"])
    if not case["ttl"]:  # we clean up as we write, Flink here does not
        assert final == case.get("final", {})
