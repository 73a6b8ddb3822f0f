"""
What a step remembers as plain data, for a program to look at, change and divide.

A snapshot says how it is divided:

    {
        "tables": {name: [[namespace, [[key, value], ...]], ...]},
        "cells": {name: value},
        "compound": [names of tables whose keys are tuples that begin with the key of the stream],
        "rules": {name of a cell: how several become one},
    }

with namespaces and rows in their order, keys and values as the table's `save_key` and `save` give them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, TypeAlias

from asyncstream.errors import safe_repr
from asyncstream.state.keys import check_key
from asyncstream.state.rows import plain_namespace

__all__ = (
    "Rule",
    "Snapshot",
    "check_snapshot",
    "divide_snapshot",
    "is_snapshot",
    "unite_snapshots",
)

Snapshot: TypeAlias = dict[str, Any]

Rule: TypeAlias = Literal["same", "sum", "min", "max", "merge"]
"""
How the cells of several parts become one: they are the same; their sum; the smallest or largest that is not
None; one dict with what is in any. Divided, a sum goes to the first part, and everything else to all.
"""


def check_snapshot(snapshot: Any) -> None:
    """
    See whether this, which the user has made, is a snapshot of tables, in which each row has a key of its
    own; raises `ValueError` if not.
    """
    if not (
        is_snapshot(snapshot)
        and isinstance(snapshot["tables"], dict)
        and isinstance(snapshot.get("cells"), dict)
        and isinstance(snapshot.get("compound"), list)
    ):
        raise ValueError(
            "expected a dict with 'tables', 'cells' and all else that was in the one that it was given, or "
            f"None to start from nothing, got {safe_repr(snapshot)}"
        )
    for name, kept in snapshot["tables"].items():
        found: set[Any] = set()
        for namespace, rows in kept:
            for key, _ in rows:
                if name in snapshot["compound"] and not (type(key) is tuple and len(key) > 1):
                    raise ValueError(
                        f"table {name!r} has keys that are tuples, of a key of the stream and what tells its "
                        f"rows apart, got {safe_repr(key)}"
                    )
                check_key(key)
                row = (plain_namespace(namespace), key)
                if row in found:
                    raise ValueError(f"table {name!r} has two rows of key {safe_repr(key)}; make one of them")
                found.add(row)


def is_snapshot(state: object) -> bool:
    """
    Whether this is a snapshot of tables, and not of a step without any, or of an earlier version.

    Args:
        state: what a checkpoint holds of a step.
    """
    return isinstance(state, dict) and "tables" in state and "rules" in state


def divide_snapshot(
    snapshot: Snapshot, share_of: Callable[[Any], int], shares: Collection[int]
) -> dict[int, Snapshot]:
    """
    A snapshot in parts, each with some of the keys.

    Args:
        snapshot: of one step.
        share_of: which part the rows of a key belong to.
        shares: all parts that there are.
    """
    compound, rules = snapshot["compound"], snapshot["rules"]
    parts: dict[int, Snapshot] = {
        share: {"tables": {}, "cells": {}, "compound": compound, "rules": rules} for share in shares
    }
    for name, kept in snapshot["tables"].items():
        is_compound = name in compound
        for part in parts.values():
            part["tables"][name] = []
        for namespace, rows in kept:
            divided: dict[int, list[Any]] = {}
            for row in rows:
                divided.setdefault(share_of(row[0][0] if is_compound else row[0]), []).append(row)
            for share, some in divided.items():
                parts[share]["tables"][name].append([namespace, some])
    first = min(shares)
    for name, value in snapshot["cells"].items():
        for share, part in parts.items():
            is_rest = rules[name] == "sum" and share != first
            part["cells"][name] = type(value)() if is_rest else value
    return parts


def unite_snapshots(parts: Sequence[Snapshot]) -> Snapshot:
    """
    The snapshot that has these parts, of which there is at least one.

    Args:
        parts: snapshots of one step, which share no key.
    """
    rules = {name: rule for part in parts for name, rule in part["rules"].items()}
    compound = list(dict.fromkeys(name for part in parts for name in part["compound"]))
    united: Snapshot = {"tables": {}, "cells": {}, "compound": compound, "rules": rules}
    for name in dict.fromkeys(name for part in parts for name in part["tables"]):
        rows_of: dict[Any, list[Any]] = {}
        for part in parts:
            for namespace, rows in part["tables"].get(name, ()):
                rows_of.setdefault(plain_namespace(namespace), []).extend(rows)
        united["tables"][name] = [[namespace, rows] for namespace, rows in rows_of.items()]
    for name in dict.fromkeys(name for part in parts for name in part["cells"]):
        values = [part["cells"][name] for part in parts if name in part["cells"]]
        united["cells"][name] = _united(values, rules[name])
    return united


def _united(values: Sequence[Any], rule: Rule) -> Any:
    if rule == "same":
        return values[0]
    if rule == "sum":
        return sum(values)
    if rule == "merge":
        return {name: value for part in values for name, value in part.items()}
    known = [value for value in values if value is not None]
    return (min if rule == "min" else max)(known) if known else None
