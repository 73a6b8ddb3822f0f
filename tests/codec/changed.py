"""A class of a module that is imported anew, with other fields than before."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

IMPORTS = """
import attrs, pydantic
from dataclasses import dataclass, field
from typing import Any, NamedTuple
"""

KINDS = {
    "dataclass": ("@dataclass(kw_only=True)\nclass Kept:", "field(default_factory=list)"),
    "slots": ("@dataclass(kw_only=True, slots=True)\nclass Kept:", "field(default_factory=list)"),
    "frozen": ("@dataclass(kw_only=True, frozen=True)\nclass Kept:", "field(default_factory=list)"),
    "both": ("@dataclass(kw_only=True, frozen=True, slots=True)\nclass Kept:", "field(default_factory=list)"),
    "attrs": ("@attrs.define(kw_only=True)\nclass Kept:", "attrs.field(factory=list)"),
    "attrs, no slots": ("@attrs.define(kw_only=True, slots=False)\nclass Kept:", "attrs.field(factory=list)"),
    "pydantic": ("class Kept(pydantic.BaseModel):", "pydantic.Field(default_factory=list)"),
    "NamedTuple": ("class Kept(NamedTuple):", "[]"),
}

CHANGES = {
    "none": ("x: Any", "y: Any"),
    "another order": ("y: Any", "x: Any"),
    "a default": ("x: Any", "y: Any", "n: Any = 7"),
    "a default ahead": ("n: Any = 7", "x: Any = 0", "y: Any = 0"),
    "a factory": ("x: Any", "y: Any", "n: Any = FACTORY"),
    "no default": ("x: Any", "y: Any", "n: Any"),
    "gone": ("x: Any",),
    "renamed": ("x: Any", "z: Any = 0"),
    "another kind": (),
}


def kept_class(monkeypatch: pytest.MonkeyPatch, kind: str, fields: tuple[str, ...]) -> Any:
    """Of a module that is imported in place of the one before."""
    head, factory = KINDS[kind]
    body = "".join(f"\n    {each.replace('FACTORY', factory)}" for each in fields)
    module = ModuleType("kept")
    monkeypatch.setitem(sys.modules, "kept", module)
    exec(f"{IMPORTS}{head}{body}" if fields else "class Kept(dict): ...", module.__dict__)
    return vars(module)["Kept"]
