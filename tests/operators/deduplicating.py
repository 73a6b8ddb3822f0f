"""A keyed step made outside of the package, without a word of persistence: passes on what is not seen yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncstream import Stream
from asyncstream.elements import Timestamps
from asyncstream.operators.base import Operator, OperatorContext, pairs
from asyncstream.operators.spec import KeyBy, KeyedSpec
from asyncstream.state import KeyedState, ValueDescriptor


class Deduplicate(Operator):
    def __init__(self, key_by: KeyBy, seen: ValueDescriptor[bool]) -> None:
        super().__init__()
        self._key_by, self._seen = key_by, seen

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._keyed = KeyedState(context.clock, self.tables)
        self._is_seen = self._keyed.state(self._seen)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        for value, timestamp in pairs(values, timestamps):
            self._keyed.key = self._key_by(value)
            if not self._is_seen.get():
                self._is_seen.set(True)
                self.out.process(value, timestamp)


@dataclass(frozen=True)
class DeduplicateSpec(KeyedSpec):
    seen: ValueDescriptor[bool]

    operator = Deduplicate

    def build(self) -> Deduplicate:
        return Deduplicate(self.key_by, self.seen)


def deduplicated(
    stream: Stream[Any], key_by: KeyBy, ttl: float | None = None, name: str | None = "first"
) -> Stream[Any]:
    spec = DeduplicateSpec(key_by, ValueDescriptor("seen", ttl=ttl))
    return Stream(stream._graph, stream._step("deduplicate", name, spec, {}))
