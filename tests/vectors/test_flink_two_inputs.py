"""
What Flink's operators with two inputs make of the watermarks and idleness of both, case by case.

Of these cases only the control elements count here: they do not hang on what the operator does with elements.
"""

from __future__ import annotations

from typing import Any

import pytest

from asyncstream.elements import Timestamps
from asyncstream.operators.ports import MultiInput
from tests.operators.recorder import IDLE, W, record
from tests.vectors.cases import Case, cases
from tests.vectors.two_inputs import step_of_the_difference

FILES = {
    "co_process": "flink_co_process.jsonl",
    "interval_join": "flink_interval_join.jsonl",
    "broadcast": "flink_broadcast.jsonl",
}


class Two(MultiInput):
    """Takes elements of two inputs, and makes nothing of them."""

    def __init__(self) -> None:
        super().__init__(self.process_nothing, self.process_nothing, holds_back=True)

    def process_nothing(self, values: Any, timestamps: Timestamps) -> None:
        pass


def run(case: Case) -> list[dict[str, Any]]:
    """The control elements that come out, with the number of their step."""
    operator = Two()
    log = record(operator)
    found: list[dict[str, Any]] = []
    for number, step in enumerate(case["ops"]):
        if "restart" in step:  # of Flink's watermarks nothing is left then
            operator = Two()
            log = record(operator)
        for name, value in step.items():
            if name[:-1] == "wm":
                operator.port(int(name[-1]) - 1).advance_watermark(value)
            elif name[:-1] in ("idle", "active"):
                operator.port(int(name[-1]) - 1).set_idle(name[:-1] == "idle")
        found += [_record(number, *entry) for entry in log.seen]
        log.seen.clear()
    return found


def _record(number: int, kind: str, value: Any) -> dict[str, Any]:
    if kind == W:
        return {"op": number, "wm": value}
    assert kind == IDLE
    return {"op": number, "status": "idle" if value else "active"}


def expected(case: Case) -> list[dict[str, Any]]:
    return [entry for entry in case["expected"] if "wm" in entry or "status" in entry]


@pytest.mark.parametrize("case", [case for kind, file in FILES.items() for case in cases(file, kind)])
def test_does_what_flink_does(case: Case) -> None:
    if any("err" in entry for entry in case["expected"]):
        pytest.skip("ends with an error of the operator")
    same = step_of_the_difference(case)
    assert [entry for entry in run(case) if entry["op"] < same] == [
        entry for entry in expected(case) if entry["op"] < same
    ]
