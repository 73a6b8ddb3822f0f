"""
Several streams become one: elements as they come, the watermark of the slowest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from asyncstream.elements import MIN_TIMESTAMP, Timestamps
from asyncstream.operators.origins import entering
from asyncstream.operators.ports import INPUTS, MultiInput
from asyncstream.operators.spec import KeyBy, Spec
from asyncstream.state.schema import Schema
from asyncstream.state.upgrade import snapshot

__all__ = ("Union", "UnionSpec")


class Union(MultiInput):
    """
    Emits when: any input does; watermarks when the slowest active input that has caught up moves.

    Completes when: every input has ended.
    Snapshot holds: watermark and idleness, its own and each input's, and which inputs were at their end.
    """

    def __init__(self, inputs: int, names: Sequence[str] = ()) -> None:
        ways = names or [str(number) for number in range(inputs)]
        super().__init__(*[partial(self._came, way) for way in ways], holds_back=False)

    def _came(self, name: str, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.out.process_batch(values, entering(timestamps, name))

    def upgraded(self, state: Any) -> Any:
        return state if isinstance(state, dict) else snapshot({}, {INPUTS: state}, {INPUTS: "same"})


@dataclass(frozen=True)
class UnionSpec(Spec):
    """
    Several streams become one.

    Attributes:
        inputs: what each of them is called, so that it finds its watermark again, wherever it stands.
    """

    inputs: tuple[str, ...]

    operator = Union
    frames = 5  # of a watermark
    keeps_only_watermarks = True
    reads = frozenset[str]()

    def build(self) -> Union:
        return Union(len(self.inputs), self.names)

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return (None,) * len(self.inputs)

    def of_ports(self, ports: Sequence[int]) -> UnionSpec:
        return UnionSpec(tuple(self.inputs[port] for port in ports))

    @property
    def names(self) -> list[str]:
        """What tells each input from the others."""
        seen: Counter[str] = Counter()
        names = []
        for name in self.inputs:
            seen[name] += 1
            names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
        return names

    @property
    def schema(self) -> Schema:
        names = self.names
        return Schema(parts=dict.fromkeys(names, "an input"), convert=partial(_rearranged, names))

    def keeps_origins(self, tag: str | None) -> bool:
        return True


def _rearranged(names: Sequence[str], state: Any, was: Schema) -> Any:
    watermark, ports, *idle = state["cells"][INPUTS] if isinstance(state, dict) else state
    known = dict(zip(was.parts, ports, strict=True))
    return [watermark, [known.get(name, [MIN_TIMESTAMP, False]) for name in names], *idle]
