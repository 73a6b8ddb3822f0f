"""
Several streams become one: elements as they come, the watermark of the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.operators.ports import MultiInput
from asyncstream.state.schema import Schema

__all__ = ("Union", "union_schema")


class Union(MultiInput):
    """
    Emits when: any input does; watermarks when the slowest active input that has caught up moves.

    Completes when: every input has ended.
    Snapshot holds: watermark and idleness, its own and each input's, and which inputs were at their end.
    """

    def __init__(self, inputs: int) -> None:
        super().__init__(*[self.process_batch] * inputs, holds_back=False)

    def snapshot(self) -> Any:
        return self.valve.snapshot()

    def restore(self, state: Any) -> None:
        self.valve.restore(state)


def union_schema(inputs: Sequence[str]) -> Schema:
    """The schema of a union of these inputs, by name: each finds its watermark again, wherever it stands."""
    names = [
        f"{name} ({inputs[:place].count(name) + 1})" if name in inputs[:place] else name
        for place, name in enumerate(inputs)
    ]
    return Schema(parts=dict.fromkeys(names, "an input"), convert=partial(_rearranged, names))


def _rearranged(names: Sequence[str], state: Any, was: Schema) -> Any:
    watermark, ports, *idle = state
    known = dict(zip(was.parts, ports, strict=True))
    return [watermark, [known.get(name, [MIN_TIMESTAMP, False]) for name in names], *idle]
