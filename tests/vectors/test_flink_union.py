"""What Flink's StatusWatermarkValve makes of the watermarks and idleness of several inputs, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from asyncstream.operators.base import Operator
from asyncstream.operators.union import Union
from tests.vectors.canonical import canonical
from tests.vectors.cases import Case, cases

FILE = "flink_union_valve.jsonl"


class Log(Operator):
    """Writes down the control elements that come out, with the step they came from."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []
        self.op = -1

    def advance_watermark(self, timestamp: int) -> None:
        self.records.append({"op": self.op, "wm": timestamp})

    def set_idle(self, idle: bool) -> None:
        self.records.append({"op": self.op, "idle": idle})


def run(case: Case) -> list[dict[str, Any]]:
    """The transcript of a case."""
    union, log = Union(case["inputs"]), Log()
    union.out = log
    for log.op, step in enumerate(case["ops"]):
        if "wm" in step:
            number, timestamp = step["wm"]
            union.ports[number].advance_watermark(timestamp)
        else:
            number, idle = step["idle"]
            union.ports[number].set_idle(idle)
    return log.records


@pytest.mark.parametrize("case", cases(FILE, "union"))
def test_does_what_flink_does(case: Case) -> None:
    assert canonical(case, run(case)) == canonical(case, case["expected"])
