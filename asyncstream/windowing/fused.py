"""
Several aggregates as one.

Calling each aggregate for each element costs more than what it does. So what the built-in ones do is written
out, one below the other, and compiled once, as `dataclasses` does with `__init__`. Nothing of the user's gets
into the text but the names of results, as literals: fields are read by functions that it refers to by number.
Any other aggregate, also a subclass of a built-in one, is called. A test holds the text against the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import indent
from typing import Any, NamedTuple

from asyncstream.state import IMMUTABLE
from asyncstream.windowing.functions import AggregateFunction, OrderMatters

__all__ = ("CALLED", "Fused", "Inline", "fused")


class Inline(NamedTuple):
    """
    What the methods of an aggregate do, as source.

    In it `{held}` stands for its accumulator, `{other}` for the other one in a merge, `{field}` for the value
    of its field, `{part}` for the aggregate itself; names that begin with `_` are its own. `free` says of a
    value `{given}` that its order does not matter, for most values; empty: it never does.
    """

    create: str
    add: str
    merge: str
    result: str = "{held}"
    free: str = ""


CALLED = Inline(
    create="{part}.create()",
    add="{held} = {part}.add({held}, value)",
    merge="{held} = {part}.merge({held}, {other})",
    result="{part}.result({held})",
)
"""An aggregate of which nothing is known."""


class Fused(NamedTuple):
    """The methods of an `AggregateFunction` whose accumulator is a list with those of its parts."""

    create: Callable[[], list[Any]]
    add: Callable[[list[Any], Any], list[Any]]
    add_order_free: Callable[[list[Any], Any], list[Any]]
    add_each: Callable[[Sequence[list[Any]], Any], Sequence[list[Any]]]
    merge: Callable[[list[Any], list[Any]], list[Any]]
    result: Callable[[list[Any]], dict[str, Any]]
    save: Callable[[list[Any]], list[Any]]
    load: Callable[[list[Any]], list[Any]]


def fused(parts: Mapping[str, tuple[AggregateFunction[Any, Any], Inline]]) -> Fused:
    """
    One function for each method.

    Args:
        parts: the aggregates by the names of their results, each with what it does or `CALLED`.
    """
    names: dict[str, Any] = {"immutable": IMMUTABLE, "OrderMatters": OrderMatters}
    checks: list[str] = []
    read: list[str] = []
    add_read: list[str] = []
    create, add, merge, result, save, load = [], [], [], [], [], []
    for place, (name, (part, source)) in enumerate(parts.items()):
        names[f"part{place}"] = part
        words = {
            "held": f"held[{place}]",
            "other": f"other[{place}]",
            "part": f"part{place}",
            "field": "value",
        }
        if source is not CALLED and part.of is not None:  # type: ignore[attr-defined]
            names[f"read{place}"] = part.value_of  # type: ignore[attr-defined]
            words["field"] = f"read{place}(value)"
        create.append(source.create.format(**words))
        add.append(source.add.format(**words))
        if source.free:
            given = f"_given{place}"
            is_free = source.free.format(given=given, **words)
            read.append(f"{given} = {words['field']}")
            checks.append(f"if not ({is_free}):\n    raise OrderMatters")
            words = {**words, "field": given}
        elif type(part).is_order_free is not AggregateFunction.is_order_free:
            checks.append(f"if not part{place}.is_order_free(value):\n    raise OrderMatters")
        add_read.append(source.add.format(**words))
        merge.append(source.merge.format(**words))
        result.append(f"{name!r}: {source.result.format(**words)}")
        save.append(_kept(AggregateFunction.save, part).format(**words))
        load.append(_kept(AggregateFunction.load, part).format(**words))
    along_row = f"for held in row:\n{_block(add_read)}"
    text = "\n".join(
        [
            f"def create():\n    return [{', '.join(create)}]",
            f"def add(held, value):\n{_block(add)}\n    return held",
            f"def add_order_free(held, value):\n{_block([*read, *checks, *add_read])}\n    return held",
            f"def add_each(row, value):\n{_block([*read, along_row])}\n    return row",
            f"def merge(held, other):\n{_block(merge)}\n    return held",
            f"def result(held):\n    return {{{', '.join(result)}}}",
            f"def save(held):\n    return [{', '.join(save)}]",
            f"def load(held):\n    return [{', '.join(load)}]",
        ]
    )
    exec(compile(text, "<fused aggregates>", "exec"), names)
    return Fused(*(names[method] for method in Fused._fields))


def _kept(method: Callable[..., Any], part: AggregateFunction[Any, Any]) -> str:
    """What `save` or `load` does; left as it is, it copies an accumulator that can change."""
    call = f"{{part}}.{method.__name__}({{held}})"
    if getattr(type(part), method.__name__) is not method:
        return call
    return f"{{held}} if type({{held}}) in immutable else {call}"


def _block(lines: list[str]) -> str:
    return indent("\n".join(lines), "    ")
