"""Plays the cases of operators with two inputs, and compares what comes out with what Flink emitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from asyncstream.clock import ManualClock
from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.errors import AsyncStreamError
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.ports import INPUTS
from tests.on_disk import bring_away, keep_on_disk
from tests.vectors.canonical import canonical
from tests.vectors.cases import Case
from tests.vectors.driver import Log

PORTS = {"el1": 0, "el2": 1, "el": 0, "bc": 1}
"""Which port an element of a case comes by."""

Counts = dict[str, int]


class Tagged(Log):
    """Notes control elements too, and of side outputs which one it is."""

    def __init__(
        self,
        records: list[dict[str, Any]],
        where: dict[str, Any],
        shown: Callable[[Any], Any],
        tag: str | None = None,
    ) -> None:
        super().__init__("out" if tag is None else "side", records, where)
        self.shown, self.tag = shown, tag

    def process_batch(self, values: Any, timestamps: Any) -> None:
        before = len(self.records)
        super().process_batch(list(map(self.shown, values)), timestamps)
        if self.tag is not None:
            for record in self.records[before:]:
                record["tag"] = self.tag

    def set_idle(self, idle: bool) -> None:
        if self.tag is None:
            self.records.append({"op": self.where["op"], "status": "idle" if idle else "active"})


def play(
    case: Case,
    make: Callable[[], Operator],
    sides: dict[str, str],
    counts: Callable[[Operator], Counts],
    where: dict[str, Any],
    *,
    on_disk: bool = False,
    shown: Callable[[Any], Any] = lambda emitted: emitted,
) -> tuple[list[dict[str, Any]], Counts | None]:
    """
    The transcript of a case, and the counts at its end unless it ended in an error.

    Args:
        sides: what the case calls each side output of the operator's that is read.
        where: is kept at the step that is played.
        on_disk: all that is remembered goes there after each step.
        shown: makes of what is emitted what the case has, or (timer, number of its call, that).
    """
    records: list[dict[str, Any]] = []
    clock = ManualClock()

    def opened() -> Operator:
        operator = make()
        operator.out = Tagged(records, where, shown)
        operator.side = {tag: Tagged(records, where, shown, named) for tag, named in sides.items()}
        if on_disk:
            keep_on_disk(operator)
        operator.open(OperatorContext(clock=clock))
        return operator

    where["op"] = -1
    try:
        operator = opened()
        for number, step in enumerate(case["ops"]):
            where["op"] = number
            if "restart" in step:
                kept = operator.snapshot()
                del kept["cells"][INPUTS]  # of watermarks and idleness Flink remembers nothing
                operator = opened()
                operator.restore(kept)
            elif "pt" in step:
                clock.set_ms(step["pt"])
                operator.advance_clock(step["pt"])
            elif "probe" in step:
                records.append({"op": number, "probe": counts(operator)})
            else:
                push(operator, *next(iter(step.items())))
            if on_disk:
                bring_away(operator.tables)
    except AsyncStreamError:
        return [*records, {"op": where["op"], "err": "error"}], None
    return records, counts(operator)


def push(operator: Operator, name: str, value: Any) -> None:
    if name in PORTS:
        element = value[0] if name == "bc" else tuple(value)
        operator.port(PORTS[name]).process(element, value[-1])
        return
    port = operator.port(int(name[-1]) - 1)
    if name[:-1] == "wm":
        port.advance_watermark(value)
    else:
        port.set_idle(name[:-1] == "idle")


def step_of_the_difference(case: Case) -> int:
    """The first step after which one input is at its end while the other is idle: see `operators.ports`."""
    idle, ended = [False, False], [False, False]
    for number, step in enumerate(case["ops"]):
        for name, value in step.items():
            if name[:-1] == "wm":
                ended[int(name[-1]) - 1] |= value == MAX_TIMESTAMP
            elif name[:-1] in ("idle", "active"):
                idle[int(name[-1]) - 1] = name[:-1] == "idle"
        if any(ended) and any(one and not over for one, over in zip(idle, ended, strict=True)):
            return number
    return len(case["ops"])


def check(
    case: Case,
    played: tuple[list[dict[str, Any]], Counts | None],
    comparable: Callable[[Counts], dict[str, Any]],
) -> None:
    """Compare a transcript and its counts with Flink's, up to where we differ on purpose."""
    records, final = played
    last = step_of_the_difference(case)
    found = [record for record in records if record["op"] < last]
    expected = [record for record in case["expected"] if record["op"] < last]
    assert canonical(case, list(_compared(found, comparable))) == canonical(
        case, list(_compared(expected, comparable))
    )
    if final is not None and last == len(case["ops"]):
        assert comparable(final) == comparable(case["final"])


def _compared(
    records: list[dict[str, Any]], comparable: Callable[[Counts], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    for record in records:
        if "probe" in record:
            yield {**record, "probe": comparable(record["probe"])}
        elif "err" in record:
            yield {**record, "err": "error"}
        else:
            yield record


def key_of(element: Any) -> Any:
    return element[0]


def comparable(found: dict[str, int]) -> dict[str, Any]:
    return {**found, "state": bool(found["state"])}
