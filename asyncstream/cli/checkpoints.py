"""
The commands about kept checkpoints. They import nothing that a checkpoint names, and but for `delete`, which
is for savepoints that are not needed any more, they change nothing.

With a key, only what was written with it counts. Without, what was is shown all the same, and it is said that
its seal was not checked: it may come from anyone with write access to the store.

`verify` also says which classes the values name. One whose module is not imported here is no fault: the
program that runs the pipeline imports it, and a run that does not refuses the checkpoint. One that values are
never made of, such as `os:system`, is none that this package has written: the checkpoint is reported as
"suspect", and the status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from asyncstream.checkpoint import CheckpointInfo, History
from asyncstream.checkpoint.history import info_in
from asyncstream.checkpoint.parts import Encoded, Part
from asyncstream.checkpoint.seal import check_seal, is_sealed
from asyncstream.checkpoint.stores import holding
from asyncstream.cli.logs import say, show
from asyncstream.cli.places import add_key, key_of, store_of
from asyncstream.cli.state import add_import, diff
from asyncstream.codec import JsonCodec, NamedClass, named_classes
from asyncstream.errors import CheckpointError, CodecError, DamagedCheckpoint
from asyncstream.lease import presence
from asyncstream.state.schema import shown

__all__ = ("add_checkpoint_commands",)

_LEASE = 30.0
"""Seconds for which the store is held at most while something is deleted."""


def add_checkpoint_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """
    Add `checkpoint list`, `show`, `verify`, `diff` and `delete` to the commands of a parser, with the
    `shared` options.
    """
    checkpoint = commands.add_parser("checkpoint", parents=[shared], help="look at kept checkpoints")
    looks = checkpoint.add_subparsers(required=True, metavar="command")
    for name, do, text in (
        ("list", _list, "one line for each"),
        ("show", _show, "what one of them holds"),
        ("verify", _verify, "read them all, and say which are damaged, sealed, and name which classes"),
        ("diff", diff, "show what changed between two of them"),
        ("delete", _delete, "delete one of them, such as a savepoint; no job may be running"),
    ):
        look = looks.add_parser(name, parents=[shared], help=text)
        look.add_argument(
            "store", metavar="STORE", help="the directory, or the SQLite file, that they are in"
        )
        if name == "show":
            look.add_argument("number", nargs="?", type=int, help="which one; the newest by default")
        elif name == "diff":
            look.add_argument("before", type=int, help="the number of one")
            look.add_argument("after", type=int, help="the number of the other")
            add_import(look)
        if name == "delete":
            look.add_argument("number", type=int, help="which one; the newest is not deleted")
        else:
            add_key(look)
        look.set_defaults(do=do)


@dataclass(frozen=True)
class _Looked:
    """
    A checkpoint that was looked at.

    Attributes:
        info: what it says of itself, or what is wrong with it.
        sealed: whether it was written with a key.
        classes: those that its values name; None: they were not looked into.
    """

    info: CheckpointInfo | CheckpointError
    sealed: bool = False
    classes: list[NamedClass] | None = None


def _read_all(
    options: argparse.Namespace,
    choose: Callable[[list[int]], list[int]] | None = None,
    *,
    contents: bool = False,
) -> dict[int, _Looked]:
    """
    By number, what is there, or those that `choose` gives: all of its contents, or what each says of itself,
    and its seal if there is a key.
    """
    key = key_of(options)
    history = History(store_of(options.store), JsonCodec(), key)

    async def look(number: int, data: bytes) -> _Looked:
        info, sealed = info_in(data, number), is_sealed(data)
        if contents:
            _, states = await history.open(number, to_decode=False)
            return _Looked(info, sealed, _classes(info, states))
        if key is not None:
            check_seal(data, key)
        return _Looked(info, sealed)

    found = asyncio.run(history.each(look, choose))
    return {
        number: _Looked(looked) if isinstance(looked, CheckpointError) else looked
        for number, looked in found.items()
    }


def _classes(info: CheckpointInfo, states: dict[str, Encoded]) -> list[NamedClass] | None:
    if info.codec != JsonCodec.name:
        return None
    try:
        return named_classes(chunk for _, chunk in chain.from_iterable(states.values()))
    except CodecError as error:
        raise CheckpointError(f"checkpoint {info.id}: {error}") from error


def _writer(path: str) -> str:
    """Who writes to a store now, for people."""
    lease = asyncio.run(store_of(path).holder())
    if lease is None:
        return "no job has written to it with a lease"
    state = "has ended" if lease.released else f"is {presence(lease.holder)}"
    return f"lease {lease.number}, of {lease.holder}, which {state}"


def _nothing(options: argparse.Namespace) -> CheckpointError:
    return CheckpointError(f"there is no checkpoint in {options.store}")


def _no_such(options: argparse.Namespace) -> CheckpointError:
    return CheckpointError(
        f"there is no checkpoint {options.number} in {options.store}; `asyncstream checkpoint list` shows all"
    )


def _list(options: argparse.Namespace) -> int:
    found = _read_all(options)
    if not found:
        say(str(_nothing(options)))
    for number, looked in found.items():
        info = looked.info
        if isinstance(info, CheckpointInfo):
            ending = "  finished" * info.finished + "  savepoint" * info.savepoint
            show(f"{number:8}  {_moment(info)}  {info.size:12,} bytes  {info.pipeline}{ending}")
        else:
            show(f"{number:8}  {_state(looked)}: {_why(number, info)}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    found = _read_all(options, contents=True)
    if not found:
        raise _nothing(options)
    for number, looked in found.items():
        if isinstance(looked.info, CheckpointError):
            show(f"{number:8}  {_state(looked)}: {_why(number, looked.info)}")
            continue
        show(f"{number:8}  {_state(looked)}, {_seal(looked, options)}")
        if looked.classes is None:
            show(f"          values of codec {looked.info.codec!r} are not looked into")
        for named in looked.classes or ():
            show(f"          {named.path}: {_judgement(named)}")
    return int(not all(_state(looked) == "whole" for looked in found.values()))


def _why(number: int, error: CheckpointError) -> str:
    """What is wrong, without what stands before it in the line."""
    words = str(error).removeprefix(f"checkpoint {number}")
    return words.removeprefix(" is damaged").removeprefix(": ")


def _judgement(named: NamedClass) -> str:
    if named.state == "refused":
        return f"SUSPECT, values are not made of it: {named.reason}"
    if named.state == "absent" and named.path.startswith("__main__:"):
        return "defined by the script or notebook that wrote it; only that can read this checkpoint"
    if named.state == "absent":
        return "its module is not imported here; only a program that imports it can read this checkpoint"
    return "its module is imported" if named.state == "imported" else "registered"


def _seal(looked: _Looked, options: argparse.Namespace) -> str:
    if not looked.sealed:
        return "not sealed with a key"
    return (
        "seal not checked, for there is no --key-file" if options.key_file is None else "sealed with this key"
    )


def _show(options: argparse.Namespace) -> int:
    asked = options.number

    def choose(numbers: list[int]) -> list[int]:
        return numbers[-1:] if asked is None else [number for number in numbers if number == asked]

    found = _read_all(options, choose)
    if not found:
        raise _nothing(options) if asked is None else _no_such(options)
    ((number, looked),) = found.items()
    info = looked.info
    if isinstance(info, CheckpointError):
        raise CheckpointError(f"checkpoint {number} is {_state(looked)}: {_why(number, info)}")
    show(f"checkpoint {info.id} of pipeline {info.pipeline!r}")
    show(f"  taken     {_moment(info)}{', when all was finished' if info.finished else ''}")
    if info.savepoint:
        show("  stays     as a savepoint, until it is deleted")
    show(f"  size      {info.size:,} bytes, codec {info.codec}")
    show(f"  seal      {_seal(looked, options)}")
    show(f"  lease     {info.lease or 'none'}; now {_writer(options.store)}")
    width = max(map(len, info.steps), default=0)
    for name, step in info.steps.items():
        show(f"  {step.role:<8}  {name:<{width}}  {step.kind:<12}  {step.size:12,} bytes")
        for line in _tables_of(step.parts):
            show(f"            {line}")
        for what, described in (step.schema or {}).items():
            if described:
                show(f"            {what} {shown(described)}")
    return 0


def _delete(options: argparse.Namespace) -> int:
    store, number = store_of(options.store), options.number

    async def delete() -> None:
        history = History(store, JsonCodec())
        numbers = await history.look()
        if number not in numbers:
            raise _no_such(options)
        if number == await _newest_whole(history, numbers):
            raise CheckpointError(f"checkpoint {number} is the newest, from which the next start goes on")
        if number == numbers[-1]:
            raise CheckpointError(
                f"checkpoint {number} is damaged, but its number must not come again: delete it once there "
                "is a newer one"
            )
        async with holding(store, _LEASE) as lease:
            await history.clean(lease, [number])

    asyncio.run(delete())
    say(f"checkpoint {number} is deleted")
    return 0


async def _newest_whole(history: History, numbers: list[int]) -> int | None:
    """The checkpoint that a start would use; None if all are damaged."""
    for number in reversed(numbers):
        try:
            await history.parts(number, to_decode=False)
        except DamagedCheckpoint:
            continue
        except CheckpointError:  # of a newer version, or out of reach for now: it is used, or refused
            pass
        return number
    return None


def _tables_of(parts: Iterable[Part]) -> Iterator[str]:
    """A line for each table of a step, or long list of its state."""
    by_table: dict[str, list[Part]] = {}
    for part in parts:
        by_table.setdefault(part.path[0] if part.path else "", []).append(part)
    for table, some in by_table.items():
        places = ", ".join(part.stored or "inline" for part in some)
        yield f"{table or '(rest)'}: {sum(part.size for part in some):,} bytes, {places}"


def _state(looked: _Looked) -> str:
    if isinstance(looked.info, CheckpointInfo):
        is_suspect = any(named.state == "refused" for named in looked.classes or ())
        return "suspect" if is_suspect else "whole"
    return "damaged" if isinstance(looked.info, DamagedCheckpoint) else "unreadable"


def _moment(info: CheckpointInfo) -> str:
    return datetime.fromtimestamp(info.created_ms / 1000, UTC).isoformat(" ", "seconds")
