"""
Lookups in a stream that is kept as a table: of each key the row that came last.

    elements ─▶ port 0 ─▶ with the row of their key ─▶ out
    rows ─────▶ port 1 ─▶ the table

An element sees the rows that have come before it, whatever their event time. Only the elements move event
time, and only their end is the end: the stream of rows may have no timestamps, and may never end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncstream.elements import Timestamps
from asyncstream.keyed.changes import UPDATE_BEFORE, Change, comes
from asyncstream.lookup.answers import MISSED, Answers, Joined
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.ports import Receive
from asyncstream.operators.results import FirstKeys, Kinds, not_a_value
from asyncstream.operators.spec import KeyBy, Spec
from asyncstream.state import Table
from asyncstream.state.schema import Schema

__all__ = ("StreamLookup", "StreamLookupSpec")


class _Rows(Operator):
    """Where the rows come in. Nothing is behind it: what it is told of their time and end goes no further."""

    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self.process_batch = receive  # type: ignore[method-assign]


class StreamLookup(Operator):
    """
    Emits each element with the row of its key, at once and in order; passes on what it is told of their time.

    A row replaces that of its key, or takes it away if `deleted` says so. Of a change log `-D` takes it away,
    too, and `-U` is passed over, for `+U` follows.
    Snapshot holds: the rows by key.
    """

    def __init__(self, joined: Joined, key_of_row: KeyBy, deleted: Callable[[Any], object] | None) -> None:
        super().__init__()
        self._answers = Answers(self, joined)
        self._key_by: Callable[[Any], Any] = FirstKeys(self, key_of_row)
        self._deleted = deleted
        self._kinds = Kinds()
        self._side = _Rows(self._keep)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._table = self.tables.declare(Table("rows"))

    def port(self, number: int) -> Operator:
        return self._side if number else self

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        table = self._table
        row_of = self._peek if table.has_older else table.rows().get
        self._answers.give(values, timestamps, row_of)

    def metrics(self) -> dict[str, int]:
        return {"table_rows": len(self._table), "missed": self._answers.missed}

    def _peek(self, key: Any, otherwise: Any) -> Any:
        return self._table.peek(None, key)

    def _keep(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        table, deleted, kinds = self._table, self._deleted, self._kinds
        row = None
        try:
            for row in values:
                goes: object = False
                if type(row) is Change:
                    if row.kind == UPDATE_BEFORE:
                        continue
                    goes, row = not comes(row), row.value
                if deleted is not None and not goes:
                    goes = deleted(row)
                    if type(goes) not in kinds.known and kinds.first_deferred([goes]) is not None:
                        raise not_a_value([goes], "let the rows say so before, in an async_map")
                key = self._key_by(row)
                if goes:
                    table.remove(None, key)
                else:
                    table.put(None, key, row)
        except BaseException as error:
            self.fail_on(row, error)


@dataclass(frozen=True)
class StreamLookupSpec(Spec):
    """
    Looks elements up in a stream that is kept as a table.

    Attributes:
        joined: what is asked, and what is made of the answer.
        key_of_row: gives the key of a row.
        deleted: whether a row takes away that of its key; None: none does.
    """

    joined: Joined
    key_of_row: KeyBy
    deleted: Callable[[Any], object] | None = None

    operator = StreamLookup
    table_port = 1
    counters = ("missed",)

    def build(self) -> StreamLookup:
        return StreamLookup(self.joined, self.key_of_row, self.deleted)

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return (self.joined.on, self.key_of_row)

    @property
    def required(self) -> tuple[str, ...]:
        return (MISSED,) if self.joined.asks else ()

    @property
    def schema(self) -> Schema:
        return Schema()
