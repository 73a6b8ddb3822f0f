"""
What aggregates do, written out: one of them, or several as one.

A built-in aggregate is declared as source (`Inline`), of which its methods are compiled, as `dataclasses`
does with `__init__`. Where several stand together their source stands one below the other and is compiled
once, with the loops that go over many accumulators: calling each would cost more than what they do. Nothing
of the user's gets into the text but the names of results, as literals: fields are read by functions that it
refers to by number. Any other aggregate, also a subclass of a built-in one, is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from textwrap import indent
from types import CodeType
from typing import Any, Final, NamedTuple, TypeAlias

from asyncstream.state import IMMUTABLE
from asyncstream.windowing.functions import AggregateFunction, OrderMatters
from asyncstream.windowing.windows import WindowResult, new_result

__all__ = ("CALLED", "Inline", "Results", "fused", "methods")


class Inline(NamedTuple):
    """
    What the methods of an aggregate do, as source.

    In it `{accumulator}` and, in a merge, `{other}` stand for the accumulators, `{field}` for the value of
    the aggregate's field, `{part}` for the aggregate itself; names that begin with `_` are its own. `copy`
    gives an accumulator like `{other}` that may be changed. `add_whole` is done instead of `add` where the
    field is the element itself. `free` says without a call of a value, `{given}`, that its order does not
    matter.
    """

    create: str
    add: str
    merge: str
    result: str = "{accumulator}"
    copy: str = "{other}"
    add_whole: str = ""
    free: str = "type({given}) is int"


CALLED: Final = Inline(
    create="{part}.create()",
    add="{accumulator} = {part}.add({accumulator}, value)",
    merge="{accumulator} = {part}.merge({accumulator}, {other})",
    result="{part}.result({accumulator})",
    copy="{part}.merge({part}.create(), {other})",
)
"""An aggregate of which nothing is known."""


Results: TypeAlias = Callable[
    [int, int, Iterable[tuple[Any, Any]], Callable[[WindowResult], None]], tuple[Any, BaseException] | None
]
"""
Makes the results of a window, from its start to its end, for keys with accumulators; gives the key that this
failed for, and with what.
"""


def fused(parts: Mapping[str | None, AggregateFunction[Any, Any]]) -> dict[str, Callable[..., Any]]:
    """
    The methods of an `InPlace`, each by its name, of the aggregates by the names of their results. Under None
    stands one alone, whose result and whose saved accumulator are not put into a dict or list.
    """
    names: dict[str, Any] = {"immutable": IMMUTABLE, "OrderMatters": OrderMatters, "new": new_result}
    checks: list[str] = []
    read: list[str] = []
    add_read: list[str] = []
    create, add, merge, copy, result, save, load = [], [], [], [], [], [], []
    for place, (name, part) in enumerate(parts.items()):
        source = _source_of(part)
        names[f"part{place}"] = part
        words = {
            "accumulator": f"accumulator[{place}]",
            "other": f"other[{place}]",
            "part": f"part{place}",
            "field": "value",
        }
        if source is not CALLED and part.of is not None:  # type: ignore[attr-defined]
            names[f"read{place}"] = part.value_of  # type: ignore[attr-defined]
            words["field"] = f"read{place}(value)"
        create.append(source.create.format(**words))
        add.append(source.add.format(**words))
        if type(part).is_order_free is not AggregateFunction.is_order_free:
            is_free = f"part{place}.is_order_free(value)"
            if source is not CALLED:
                given = f"_given{place}"
                read.append(f"{given} = {words['field']}")
                is_free = f"{source.free.format(given=given)} or {is_free}"
                words = {**words, "field": given}
            checks.append(f"if not ({is_free}):\n    raise OrderMatters")
        add_read.append(source.add.format(**words))
        merge.append(source.merge.format(**words))
        copy.append(source.copy.format(**{**words, "other": words["accumulator"]}))
        result.append(("" if name is None else f"{name!r}: ") + source.result.format(**words))
        save.append(_kept(AggregateFunction.save, part).format(**words))
        kept = "accumulator" if name is None else words["accumulator"]
        load.append(_kept(AggregateFunction.load, part).format(**{**words, "accumulator": kept}))
    alone = None in parts
    its_result = result[0] if alone else f"{{{', '.join(result)}}}"
    saved = save[0] if alone else f"[{', '.join(save)}]"
    text = f"""{_functions("", f"[{', '.join(create)}]", add, merge, its_result)}
def add_order_free(accumulator, value):
{_block([*read, *checks, *add_read])}
    return accumulator
def add_each(row, value):
{_block([*read, "for accumulator in row:", _block(add_read)])}
    return row
def add_all(accumulator, values):
    for value in values:
{_block(add, 2)}
    return accumulator
def gather(found, rows):
    put = found.setdefault
    for key, other in rows.items():
        accumulator = put(key, other)
        if accumulator is other:
            continue
        if accumulator is None:
            found[key] = other
            continue
        if len(accumulator) > {len(parts)}:
            accumulator = found[key] = [{", ".join(copy)}]
{_block(merge, 2)}
def results(start_ms, end_ms, cells, emit):
    key = None
    try:
        for key, accumulator in cells:
            emit(new((key, start_ms, end_ms, {its_result})))
    except BaseException as error:
        return key, error
def save(accumulator):
    return {saved}
def load(accumulator):
    return [{", ".join(load)}]
"""
    return _made(text, names)


@lru_cache(256)
def _code(text: str) -> CodeType:
    """Compiled once for all steps that aggregate alike: of every task on Spark, and of every test."""
    return compile(text, "<fused aggregates>", "exec")


def methods(does: Inline) -> dict[str, Callable[..., Any]]:
    """The methods of a class of aggregates that does this, each by its name."""
    words = {"accumulator": "accumulator", "other": "other", "part": "self", "field": "self.value_of(value)"}
    create, add, merge, result, _, add_whole, _ = (source.format(given="", **words) for source in does)
    if add_whole:
        add = f"if self.of is None:\n{_block([add_whole])}\nelse:\n{_block([add])}"
    return _made(_functions("self, ", create, [add], [merge], result), {})


def _functions(first: str, create: str, add: list[str], merge: list[str], result: str) -> str:
    """The functions that every aggregate has; `first` stands before their other arguments."""
    return f"""
def create({first}):
    return {create}
def add({first}accumulator, value):
{_block(add)}
    return accumulator
def merge({first}accumulator, other):
{_block(merge)}
    return accumulator
def result({first}accumulator):
    return {result}
"""


def _made(text: str, names: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """The functions of a text, each by its name."""
    found: dict[str, Callable[..., Any]] = {}
    exec(_code(text), names, found)
    return found


def _source_of(part: AggregateFunction[Any, Any]) -> Inline:
    """What the methods of exactly this class do."""
    source: Inline = vars(type(part)).get("does", CALLED)
    if source.add_whole and part.of is None:  # type: ignore[attr-defined]
        source = source._replace(add=source.add_whole)
    if source is not CALLED and not getattr(part, "exact", True):
        source = source._replace(free=part.free_if_inexact)  # type: ignore[attr-defined]
    return source


def _kept(method: Callable[..., Any], part: AggregateFunction[Any, Any]) -> str:
    """What `save` or `load` does; left as it is, it copies an accumulator that can change."""
    call = f"{{part}}.{method.__name__}({{accumulator}})"
    if getattr(type(part), method.__name__) is not method:
        return call
    return f"{{accumulator}} if type({{accumulator}}) in immutable else {call}"


def _block(lines: list[str], depth: int = 1) -> str:
    return indent("\n".join(lines), depth * "    ")
