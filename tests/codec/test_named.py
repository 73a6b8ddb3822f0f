"""Which classes bytes name, told without importing or decoding anything."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import orjson
import pytest

from asyncstream.codec import JsonCodec, NamedClass, named_classes
from asyncstream.errors import CodecError


@dataclass
class Order:
    price: object


class Color(Enum):
    RED = 1


class Point(NamedTuple):
    x: object


def test_all_kinds_are_found_wherever_they_are() -> None:
    value = [{"a": (Order({Point(Color.RED)}), ValueError(Order(1)))}, {Color.RED: 1}]
    found = named_classes([JsonCodec().encode(value)])
    paths = {f"{__name__}:{name}" for name in ("Order", "Color", "Point")} | {"builtins:ValueError"}
    assert {named.path for named in found} == paths
    assert {named.state for named in found} == {"imported"}


def test_plain_values_that_look_like_names_name_nothing() -> None:
    value = [{"$dataclass": ["os:system", {}]}, {"$enum": "x"}]
    assert named_classes([JsonCodec().encode(value)]) == []


def test_registered() -> None:
    @dataclass
    class Local:
        x: int = 1

    data = JsonCodec([Local]).encode(Local())
    assert [named.state for named in named_classes([data], [Local])] == ["registered"]
    assert [named.state for named in named_classes([data])] == ["refused"]


@pytest.mark.parametrize("tag", ["$enum", "$named", "$dataclass", "$model", "$error"])
@pytest.mark.parametrize(
    "path", ["os:system", "subprocess:Popen", "os:", "builtins:eval", "builtins:int", "os:path.join", 7]
)
def test_what_values_are_not_made_of_is_refused(tag: str, path: object) -> None:
    import subprocess  # noqa: F401

    [named] = named_classes([orjson.dumps({"deep": [{tag: [path, {}]}]})])
    assert named.state == "refused"
    assert named.reason


def test_nothing_is_imported() -> None:
    assert "this" not in sys.modules
    data = orjson.dumps({"$dataclass": ["this:Zen", {}]})
    assert named_classes([data]) == [NamedClass("this:Zen", "absent")]
    assert "this" not in sys.modules


def test_other_bytes() -> None:
    with pytest.raises(CodecError, match="not the bytes of a value"):
        named_classes([b"\x80\x04"])
