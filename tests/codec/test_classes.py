"""Bytes name classes; they neither import modules nor run code."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from asyncstream.checkpoint import Checkpoints
from asyncstream.checkpoint.stores import MemoryStore
from asyncstream.codec import ForeignError, JsonCodec, codec
from asyncstream.errors import CodecError, PipelineError

PAYLOADS = [
    '{"$dataclass":["MODULE:X",{}]}',
    '{"$named":["MODULE:X",1]}',
    '{"$enum":["MODULE:X","A"]}',
    '{"$error":["MODULE:X",{"$tuple":[1]},{},null]}',
    '{"$dict":[{"$dataclass":["MODULE:X",{}]},1]}',
    '[{"$set":[{"$enum":["MODULE:X",1]}]}]',
    '{"$datetime":["2024-01-01T00:00:00",0,{"$dataclass":["MODULE:X",{}]}]}',
    '{"$ndarray":[null,[1],[{"$dataclass":["MODULE:X",{}]}]]}',
]


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that can be imported from, with a module that leaves a mark when it runs."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil").mkdir()
    for name in ("evil/__init__.py", "evil/inner.py"):
        (tmp_path / name).write_text(
            f"open({str(tmp_path / 'mark')!r}, 'w').close()\nclass X(Exception): pass\n"
        )
    yield tmp_path
    sys.modules.pop("evil", None)


@pytest.mark.parametrize("module", ["evil", "evil.inner"])
@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_module_is_imported(payload: str, module: str, evil: Path) -> None:
    data = payload.replace("MODULE", module).encode()
    if "$error" in payload:  # an error that is not known here is known by what it said
        made = JsonCodec().decode(data)
        assert type(made) is ForeignError
        assert (made.kind, str(made)) == (f"{module}.X", f"{module}.X: 1")
    else:
        with pytest.raises(CodecError, match=f"import {module} before"):
            JsonCodec().decode(data)
    assert not (evil / "mark").exists()
    assert "evil" not in sys.modules


@dataclass
class Order:
    id: int


@pytest.mark.parametrize("payload", PAYLOADS)
def test_class_of_another_script_is_told_from_one_that_is_gone(
    payload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = payload.replace("MODULE:X", "__main__:Order").encode()
    if "$error" in payload:
        assert type(JsonCodec().decode(data)) is ForeignError
    else:
        with pytest.raises(
            CodecError, match=r"script or notebook .* set __main__\.Order to the class before"
        ):
            JsonCodec().decode(data)
    monkeypatch.setattr(sys.modules["__main__"], "Order", "no class", raising=False)
    with pytest.raises(CodecError, match="not there any more: 'Order' is no class"):
        JsonCodec().decode(data)


def test_class_of_another_script_is_found_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as script:
        script.setattr(sys.modules["__main__"], "Order", Order, raising=False)
        script.setattr(Order, "__module__", "__main__")
        data = JsonCodec().encode(Order(1))
    assert b"__main__:Order" in data
    monkeypatch.setattr(sys.modules["__main__"], "Order", Order, raising=False)
    assert JsonCodec().decode(data) == Order(1)
    assert b"tests.codec.test_classes:Order" in JsonCodec().encode(Order(1))


@pytest.mark.parametrize(
    "path",
    [
        "subprocess:Popen",
        "os:system",
        "os:path.join",
        "tests.codec.test_classes:sys.modules",
        "tests.codec.test_classes:enum.Enum",
        "builtins:eval",
        "builtins:dict",
        "pathlib:Path",
        "",
        ":",
        "x",
    ],
)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_is_no_class_of_values_is_refused(path: str, payload: str) -> None:
    with pytest.raises(CodecError):
        JsonCodec().decode(payload.replace("MODULE:X", path).replace("$error", "$named").encode())


def local_classes() -> tuple[Any, Any]:
    @dataclass
    class Item:
        n: int

    class Kind(enum.Enum):
        A = 1

    return Item, Kind


def test_registered_class_is_found_wherever_it_is_defined() -> None:
    item, kind = local_classes()
    with pytest.raises(CodecError, match="define it in a module, or name it in types="):
        JsonCodec().encode(item(1))
    by = codec("json", types=[item, kind])
    assert by.decode(by.encode([item(1), {kind.A: item(2)}])) == [item(1), {kind.A: item(2)}]
    with pytest.raises(CodecError):
        JsonCodec().decode(by.encode(item(1)))


class Plain:
    pass


class Row(NamedTuple):
    n: int


@pytest.mark.parametrize(
    "types", [3, [3], [Plain], [int], ["Row"], Row, [local_classes()[0], local_classes()[0]]]
)
def test_types_that_cannot_be_registered_are_refused(types: Any) -> None:
    with pytest.raises(PipelineError, match="types: expected"):
        codec("json", types=types)
    with pytest.raises(PipelineError, match="types: expected"):
        Checkpoints(store=MemoryStore(), types=types)


def test_types_are_for_the_default_codec() -> None:
    with pytest.raises(PipelineError, match="types: expected none"):
        codec("pickle", types=[Row])
    assert Checkpoints(store=MemoryStore(), types=iter([Row])).types == (Row,)
