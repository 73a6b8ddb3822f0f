"""
One `add` for several aggregates.

Calling the `add` of each aggregate for each element costs more than what they do. So the steps of the
built-in ones are written out, one below the other, and compiled once, as `dataclasses` does with `__init__`.
Nothing of the user's gets into the text: fields are read by functions that it refers to by number. Any
other aggregate, also a subclass of a built-in one, is called. A test holds each step against its `add`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import indent
from typing import Any

from asyncstream.windowing.functions import AggregateFunction

__all__ = ("CALL", "fused_add")

CALL = "{held} = {add}({held}, value)"
"""The step of an aggregate of which nothing is known."""


def fused_add(
    parts: Sequence[tuple[AggregateFunction[Any, Any], str]],
) -> Callable[[list[Any], Any], list[Any]]:
    """
    A function like `AggregateFunction.add` whose accumulator is a list with those of `parts`.

    Args:
        parts: the aggregates, each with what its `add` does, as source, or `CALL`. In it `{held}` stands for
            its accumulator, `{field}` for the value of its field; names that begin with `_` are its own.
    """
    names: dict[str, Any] = {}
    lines = []
    for place, (part, step) in enumerate(parts):
        names[f"add{place}"] = part.add
        field = "value"
        if step != CALL and part.of is not None:  # type: ignore[attr-defined]
            names[f"read{place}"] = part.value_of  # type: ignore[attr-defined]
            field = f"read{place}(value)"
        lines.append(step.format(held=f"held[{place}]", field=field, add=f"add{place}"))
    body = indent("\n".join(lines), "    ")
    exec(compile(f"def add(held, value):\n{body}\n    return held\n", "<fused aggregates>", "exec"), names)
    add: Callable[[list[Any], Any], list[Any]] = names["add"]
    return add
