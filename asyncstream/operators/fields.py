"""
Which fields of an element functions look at, where that can be told: whoever reads elements need not read
the others.

A function is asked by its byte code. It is known where all that it ever does with its argument is to take one
field after the other, `element["user"]`, by names that are written there. Whatever else is done with it (it
is given to a function, changed, caught by an inner one) may have anything looked at.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any, Final

from asyncstream.validation import fields_of

__all__ = ("fields_read",)

_LOADS: Final = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW")
"""With what those instructions end, in versions of Python, that put an argument on top of the stack."""

_SEE_ALL: Final = frozenset({"dir", "eval", "exec", "f_locals", "locals", "vars"})
"""Names by which code sees its own arguments."""


def fields_read(functions: Iterable[Callable[[Any], Any]]) -> frozenset[str] | None:
    """The fields that any of these looks at in an element, which is a dict; None: one may look at others."""
    found = set[str]()
    for function in functions:
        fields: Iterable[str] | None = fields_of(function)
        if isinstance(fields, str):
            fields = (fields,)
        elif fields is None and type(function) is FunctionType:
            fields = _taken(function.__code__)
        if fields is None:
            return None
        found.update(fields)
    return frozenset(found)


def _taken(code: CodeType) -> set[str] | None:
    """The fields that code takes of its first argument; None: it may do something else with it."""
    if not code.co_argcount or not _SEE_ALL.isdisjoint(code.co_names):
        return None
    element, *_ = code.co_varnames
    if element in code.co_cellvars:
        return None
    found = set[str]()
    steps = list(dis.get_instructions(code))
    for place, step in enumerate(steps):
        # one instruction may load or store two, of which the last is found
        names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if "FAST" not in step.opname or element not in names:
            continue
        is_found = step.opname.endswith(_LOADS) and names.index(element) == len(names) - 1
        field = _field_taken(steps[place + 1 : place + 3]) if is_found else None
        if field is None:
            return None
        found.add(field)
    return found


def _field_taken(steps: list[dis.Instruction]) -> str | None:
    """The name by which these two instructions take a field; None: they do not."""
    name, take = steps[0], steps[-1]
    is_taken = take.opname == "BINARY_SUBSCR" or (take.opname == "BINARY_OP" and take.argrepr == "[]")
    is_name = name.opname == "LOAD_CONST" and type(name.argval) is str
    return name.argval if is_name and is_taken else None
