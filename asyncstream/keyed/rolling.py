"""
Rolling results: for each element what it and all before it of its key come to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncstream.elements import Timestamps
from asyncstream.keyed.base import KeyedStep
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.results import Kinds, not_a_value
from asyncstream.operators.spec import KeyBy, KeyedSpec
from asyncstream.state import MISSING, ReducingDescriptor, TimeToLive
from asyncstream.state.keys import SOUND, check_key, equals_itself
from asyncstream.state.schema import Schema, described

__all__ = ("Best", "Rolling", "RollingSpec")


@dataclass(frozen=True)
class Best:
    """
    The element of two with the smaller, or the larger, value; of equal ones the first. NaN, and a tuple with
    one, is worse than all else.

    Attributes:
        by: gives the value.
        largest: not the smaller one.
    """

    by: Callable[[Any], Any]
    largest: bool

    def __call__(self, one: Any, other: Any) -> Any:
        mine, others = self.by(one), self.by(other)
        if mine != mine or others != others or type(mine) is tuple:
            if not equals_itself(others):
                return one
            if not equals_itself(mine):
                return other
        return other if (mine < others if self.largest else others < mine) else one

    def state_schema(self) -> dict[str, Any]:
        """What a change of means that the state is of no use."""
        return {"type": "Best", "largest": self.largest, "by": described(self.by)}


class Rolling(KeyedStep):
    """
    Emits for each element what those of its key come to so far; after Flink's rolling aggregations.

    Snapshot holds: that, by key.
    """

    def __init__(self, key_by: KeyBy, reduce: Callable[[Any, Any], Any], ttl: TimeToLive | None) -> None:
        super().__init__(key_by)
        self._kinds = Kinds()
        self._descriptor = ReducingDescriptor("so far", reduce, ttl=ttl)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._so_far = self._state.state(self._descriptor)
        self._table = self.tables["state/so far"]

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        if self._descriptor.ttl is not None:
            super().process_batch(values, timestamps)
            return
        key_by, reduce, table, check = self._key_by, self._descriptor.reduce, self._table, self._check
        rows, has_older, known = table.rows(), table.has_older, self._kinds.known
        outcomes: list[Any] = []
        value = None
        try:
            for value in values:
                key = key_by(value)
                held = rows.get(key, MISSING)
                if held is MISSING and has_older:
                    held = table.take(None, key)
                if held is not MISSING:
                    outcome = reduce(held, value)
                else:
                    if type(key) not in SOUND:
                        check_key(key)
                    outcome = value
                if type(outcome) not in known:
                    check(outcome)
                rows[key] = outcome
                outcomes.append(outcome)
        except BaseException as error:
            self._pass_on(outcomes, timestamps)
            self.fail_on(value, error)
        self._pass_on(outcomes, timestamps)

    def _pass_on(self, outcomes: list[Any], timestamps: Timestamps) -> None:
        if outcomes:
            self.out.process_batch(outcomes, None if timestamps is None else timestamps[: len(outcomes)])

    def _take(self, value: Any, timestamp: int | None) -> None:
        outcome = self._so_far.add(value)
        if type(outcome) not in self._kinds.known:
            self._check(outcome)
        self._out.emit(outcome)

    def _check(self, outcome: Any) -> None:
        if self._kinds.first_deferred([outcome]) is not None:
            raise not_a_value([outcome], "ask a service in an async_map before or after")


@dataclass(frozen=True)
class RollingSpec(KeyedSpec):
    """
    Folds the elements of each key as they come.

    Attributes:
        key_by: gives the key of an element.
        reduce: makes one of what there is and an element.
        ttl: how long a key is remembered after its last element; None: for ever.
    """

    reduce: Callable[[Any, Any], Any]
    ttl: TimeToLive | None = None

    operator = Rolling

    def build(self) -> Rolling:
        return Rolling(self.key_by, self.reduce, self.ttl)

    @property
    def schema(self) -> Schema:
        schema = Schema(form={"reduce": described(self.reduce)}, settings={"ttl": described(self.ttl)})
        return schema.reading({"by": self.reduce.by if isinstance(self.reduce, Best) else None})
