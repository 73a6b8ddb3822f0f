"""A step with two inputs of different keys: elements of the one are told the latest of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncstream import Stream
from asyncstream.elements import Timestamps
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.ports import MultiInput
from asyncstream.operators.spec import KeyBy, Spec
from asyncstream.plan import Output
from asyncstream.state.rows import MISSING
from asyncstream.state.schema import Schema
from asyncstream.state.table import Table


def is_event(value: Any) -> bool:
    """Events ask for a key, facts have one: "?a" and "a"."""
    return bool(value["key"][0] == "?")


def asked_for(value: Any) -> Any:
    return value["key"][1:]


def own_key(value: Any) -> Any:
    return value["key"]


class Enrich(MultiInput):
    """Knows of an input by its port, and says nothing of how it is kept, divided or restored."""

    def __init__(self, key_of_event: KeyBy, key_of_fact: KeyBy) -> None:
        super().__init__(self.process_events, self.process_facts, holds_back=True)
        self._key_of_event = key_of_event
        self._key_of_fact = key_of_fact

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._latest = self.tables.declare(Table("latest"))

    def process_events(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        known = [self._latest.get(None, self._key_of_event(value)) for value in values]
        found = [
            f"{value['v']} with {None if fact is MISSING else fact}"
            for value, fact in zip(values, known, strict=True)
        ]
        self.out.process_batch(found, timestamps)

    def process_facts(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        for value in values:
            self._latest.put(None, self._key_of_fact(value), value["v"])


@dataclass(frozen=True)
class EnrichSpec(Spec):
    """Without `key_of_fact` every task needs all facts."""

    key_of_event: KeyBy
    key_of_fact: KeyBy | None

    operator = Enrich

    def build(self) -> Enrich:
        return Enrich(self.key_of_event, self.key_of_fact or own_key)

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return (self.key_of_event, self.key_of_fact)

    @property
    def schema(self) -> Schema:
        return Schema()


def enriched(events: Stream[Any], facts: Stream[Any], key_of_fact: KeyBy | None = own_key) -> Stream[str]:
    """As a join will be: an ordinary step, of what is public about plans."""
    outputs: tuple[Output, ...] = (events._output, facts._output)
    spec = EnrichSpec(asked_for, key_of_fact)
    return Stream(events._graph, events._step("enrich", "enriched", spec, {}, outputs))
