"""
When two transcripts of a golden case are the same: README of the vectors, "Comparing".

Left open by the recording: the order of timer calls of one step, domain and time (`order: ties`), and the
order of the contents of merged windows (`values: sorted`).
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

from tests.vectors.cases import Case

Records = list[dict[str, Any]]


def canonical(case: Case, records: Records) -> list[Any]:
    """`records` in a form that is equal for transcripts that are the same for `case`."""
    if case["kind"] == "interval_join":
        records = _pairs_by_time(records)
    if case["kind"] == "window_join" and case["compare"]["values"] == "sorted":
        records = _calls_sorted(records)
    if case["compare"]["order"] == "total":
        return [_text(case, record) for record in records]
    runs: list[Any] = []
    for (_, timer), run in groupby(records, key=lambda record: (record["op"], tuple(record.get("t", ())))):
        if timer:
            calls = [list(call) for _, call in groupby(run, key=lambda record: record["cb"])]
            runs.append(sorted([_text(case, record) for record in call] for call in calls))
        else:
            runs.extend(_text(case, record) for record in run)
    return runs


def _pairs_by_time(records: Records) -> Records:
    """The pairs of one step by the times of left and right: Flink walks partners by the hash of theirs."""
    ordered: Records = []
    for (_, is_out), run in groupby(records, key=lambda record: (record["op"], "out" in record)):
        step = list(run)
        ordered += sorted(step, key=lambda record: record["out"][3:5]) if is_out else step
    return ordered


def _calls_sorted(records: Records) -> Records:
    """The lists of groups sorted, and the pairs of one window call."""
    records = [dict(record) for record in records]
    for record in records:
        if isinstance(record.get("out", (0, 0))[1], list):
            record["out"] = [record["out"][0], *map(sorted, record["out"][1:])]
    ordered: Records = []
    for _, run in groupby(records, key=lambda one: (one["op"], "out" in one, one.get("cb"), one.get("ts"))):
        ordered += sorted(run, key=lambda record: json.dumps(record, sort_keys=True))
    return ordered


def _text(case: Case, record: dict[str, Any]) -> str:
    record = {name: part for name, part in record.items() if name != "cb"}
    if case["compare"]["values"] == "sorted" and len(record.get("out", ())) == 4:
        *head, result = record["out"]
        if isinstance(result, dict):
            result = {**result, "vals": sorted(result["vals"])}
        elif isinstance(result, list):
            result = sorted(result)
        record["out"] = [*head, result]
    return json.dumps(record, sort_keys=True)
