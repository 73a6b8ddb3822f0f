"""
What the tables of a step hold of one key, to be looked at.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from asyncstream.state.capture import detached
from asyncstream.state.rows import MISSING
from asyncstream.state.table import Table

__all__ = ("of_key",)


def of_key(tables: Iterable[Table], key: Hashable) -> dict[str, Any]:
    """
    By table, what it holds of one key of the stream; without tables that hold nothing of it.

    That is the value of a row that has no namespace; else a list of (namespace, value); and for a table with
    compound keys, such as one of timers, a list of (namespace, rest of the key), for which all its rows are
    looked at. Values are copies, as they are saved. Entries that have outlived their time to live are shown
    until they are cleaned up.
    """
    found: dict[str, Any] = {}
    for table in tables:
        if table.compound:
            rows = [
                (namespace, saved[1] if len(saved) == 2 else saved[1:])
                for namespace, place, _ in table.items()
                if (saved := table.save_key(place))[0] == key
            ]
            if rows:
                found[table.name] = rows
            continue
        values = [
            (namespace, detached(table.save(value)))
            for namespace in table.namespaces()
            if (value := table.peek(namespace, key)) is not MISSING
        ]
        if values:
            found[table.name] = values[0][1] if values[0][0] is None else values
    return found
