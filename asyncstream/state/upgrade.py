"""
Snapshots of version 0.2, in which each operator had a form of its own, as snapshots of tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from asyncstream.state.rows import plain_namespace
from asyncstream.state.snapshots import Rule, Snapshot

__all__ = ("EXPIRES", "WRITTEN", "by_namespace", "keyed_state", "snapshot", "timers", "upgraded_process")

WRITTEN: Final = " written"
"""What the name of the table ends with that holds when entries of another were written."""

EXPIRES: Final = " expires"
"""The same for versions before 0.2, which kept when the whole entry expires."""


def upgraded_process(state: Mapping[str, Any]) -> Snapshot:
    """What a process function remembered."""
    tables, kinds = keyed_state("state", state["state"])
    return snapshot({**tables, **timers(state["timers"])}, {"state": kinds}, {"state": "merge"})


def snapshot(tables: dict[str, Any], cells: dict[str, Any], rules: dict[str, Rule]) -> Snapshot:
    """A snapshot of tables, of which those of timers have compound keys."""
    compound = [name for name in tables if name.startswith("timers/")]
    return {"tables": tables, "cells": cells, "compound": compound, "rules": rules}


def keyed_state(prefix: str, state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Of keyed state, the tables and the kinds."""
    tables: dict[str, Any] = {}
    for name, kept in state.items():
        cells = [(namespace, key, value) for key, namespace, value, _ in kept["cells"]]
        times = [(namespace, key, at) for key, namespace, _, at in kept["cells"] if at is not None]
        tables[f"{prefix}/{name}"] = by_namespace(cells)
        if times:
            tables[f"{prefix}/{name}{WRITTEN if 'times' in kept else EXPIRES}"] = by_namespace(times)
    return tables, {name: kept["kind"] for name, kept in state.items()}


def timers(state: Mapping[str, Any]) -> dict[str, Any]:
    """Of timers, the tables."""
    return {
        f"timers/{domain}": by_namespace(
            (timestamp, (key, plain_namespace(namespace)), None) for timestamp, key, namespace in kept
        )
        for domain, kept in state.items()
    }


def by_namespace(cells: Iterable[tuple[Any, Any, Any]]) -> list[Any]:
    """The rows of a table, given as (namespace, key, value)."""
    found: dict[Any, list[Any]] = {}
    for namespace, key, value in cells:
        found.setdefault(plain_namespace(namespace), []).append([key, value])
    return [[namespace, rows] for namespace, rows in found.items()]
