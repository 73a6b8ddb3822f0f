"""
The commands that look into what steps remember in checkpoints: `state query`, and `checkpoint diff`.

They decode values, so classes that those are made of must be importable and imported, `--import MODULE` does
that; what was pickled is not read, since reading it runs what it says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

import orjson

from asyncstream.checkpoint import CheckpointInfo, History
from asyncstream.checkpoint.parts import Encoded
from asyncstream.checkpoint.segments import decoded
from asyncstream.cli.logs import show
from asyncstream.cli.places import add_key, imported, key_of, store_of
from asyncstream.codec import JsonCodec
from asyncstream.codec.classes import Classes, NotImported
from asyncstream.codec.unpacking import Unpacker
from asyncstream.errors import CheckpointError, DamagedCheckpoint
from asyncstream.state import MISSING, Kept, Table
from asyncstream.state.schema import Schema, compare
from asyncstream.state.tables import of_key

__all__ = ("add_import", "add_state_command", "diff", "query")

_CODEC: Final = JsonCodec()

_UNPACKER: Final = Unpacker(Classes())

_OF_JSON: Final = ("$int", "$str")
"""How the codec writes what JSON has words for and orjson has not."""

_OF_BLOCKS: Final = ("$array", "$ndarray", "$numpy", "$pandas")
"""How it writes what consists of blocks of numbers."""

_LONG: Final = 200
"""Characters that are shown of a key as an example."""


def add_state_command(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add `state query` to the commands of a parser."""
    state = commands.add_parser("state", parents=[shared], help="look into the state of steps")
    looks = state.add_subparsers(required=True, metavar="command")
    look = looks.add_parser(
        "query", parents=[shared], help="show the state of one key of a step, in a checkpoint, as JSON"
    )
    look.add_argument("store", help="the directory, or the SQLite file, that the checkpoints are in")
    look.add_argument("step", help="name of the step")
    look.add_argument(
        "key",
        help="as JSON, with a list for a tuple, and other types as checkpoints write them, such as "
        '{"$date": "2026-01-31"}; anything that is not JSON is a text',
    )
    look.add_argument("--number", type=int, metavar="N", help="of the checkpoint; the newest by default")
    add_import(look)
    add_key(look)
    look.set_defaults(do=query)


def add_import(parser: argparse.ArgumentParser) -> None:
    """Add the option for modules whose classes values are made of."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this first: values may be made of its classes; may be repeated",
    )


def query(options: argparse.Namespace) -> int:
    """Print what a step remembers of one key."""
    info, encoded = asyncio.run(_open(options.number, options))
    if options.step not in encoded:
        raise CheckpointError(
            f"checkpoint {info.id} holds no step {options.step!r}; it has {', '.join(encoded)}"
        )
    kept = _decoded(options.step, encoded[options.step])
    if not isinstance(kept, Kept):
        raise CheckpointError(f"step {options.step!r} keeps no tables, so there is nothing to look up by key")
    found = of_key(kept.tables.values(), _key(options.key))
    for name, value in found.items():
        show(f"{name}: {_shown(value)}")
    if not found:
        like = f"; its keys are written like {text}" if (text := _written_key(kept)) else ""
        show(f"nothing of {options.key} in step {options.step!r} of checkpoint {info.id}{like}")
    return int(not found)


def diff(options: argparse.Namespace) -> int:
    """Print what has changed from one checkpoint to another."""
    before, was = asyncio.run(_open(options.before, options))
    after, now = asyncio.run(_open(options.after, options))
    show(f"checkpoint {before.id} to {after.id} of pipeline {after.pipeline!r}")
    for step in {**was, **now}:
        if step not in now or step not in was:
            show(f"  {step}: only in {before.id if step in was else after.id}")
            continue
        for line in _changes(step, before, after, was[step], now[step]):
            show(f"  {step}{line}")
    shared = before.stored & after.stored
    show(f"  they share {len(shared)} of {len(after.stored)} parts in the store")
    return 0


def _changes(
    step: str, before: CheckpointInfo, after: CheckpointInfo, was: Encoded, now: Encoded
) -> list[str]:
    schemas = [info.steps[step].schema for info in (before, after)]
    lines = []
    if None not in schemas:
        change = str(compare(Schema.of(schemas[0]), Schema.of(schemas[1])))
        lines += [f": {change}"] if change else []
    if was == now:
        return lines
    old, new = (_decoded(step, encoded) for encoded in (was, now))
    if not (isinstance(old, Kept) and isinstance(new, Kept)):
        return [*lines, ": changed"]
    for name in {**old.tables, **new.tables}:
        counts = _rows_changed(old.tables.get(name, Table(name)), new.tables.get(name, Table(name)))
        if any(counts.values()):
            lines.append(
                f"/{name}: " + ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
            )
    before_cells = old.about["cells"]
    for name, cell in new.about["cells"].items():
        if name not in before_cells or _differ(before_cells[name], cell):
            lines.append(f": {name} was {_shown(before_cells.get(name))} and is {_shown(cell)}")
    return lines


def _decoded(step: str, encoded: Encoded) -> Any:
    try:
        return decoded(step, encoded, _CODEC)
    except CheckpointError as error:
        if isinstance(error.__cause__, NotImported):
            raise CheckpointError(f"{error}; --import MODULE imports one here") from error
        raise


def _rows_changed(old: Table, new: Table) -> Mapping[str, int]:
    counts = {"added": 0, "removed": 0, "changed": 0}
    for namespace, key, value in new.items():
        before = old.peek(namespace, key)
        if before is MISSING:
            counts["added"] += 1
        elif _differ(before, value):
            counts["changed"] += 1
    counts["removed"] = len(old) - (len(new) - counts["added"])
    return counts


def _differ(one: Any, other: Any) -> bool:
    """
    Whether two values are written in other ways, but for the order of dicts and sets; what their classes say
    to == may be anything.
    """
    written, before = _CODEC.encode(one), _CODEC.encode(other)
    return written != before and _in_order(orjson.loads(written)) != _in_order(orjson.loads(before))


def _in_order(packed: Any) -> str:
    """What the codec has made of a value as text, with dicts and sets in an order that is always the same."""
    if type(packed) is list:
        return _listed(map(_in_order, packed))
    if type(packed) is not dict or "$ordered" in packed:  # of which the order is a part
        return repr(packed)
    if "$dict" in packed:
        parts = map(_in_order, packed["$dict"])
        return "$dict" + _listed(sorted(map(_listed, zip(parts, parts, strict=True))))
    for kind in ("$set", "$frozenset"):
        if kind in packed:
            return kind + _listed(sorted(map(_in_order, packed[kind])))
    return "{" + _listed(sorted(f"{name!r}:{_in_order(part)}" for name, part in packed.items())) + "}"


def _listed(parts: Iterable[str]) -> str:
    return f"[{','.join(parts)}]"


async def _open(number: int | None, options: argparse.Namespace) -> tuple[CheckpointInfo, dict[str, Encoded]]:
    store = store_of(options.store)
    for module in options.imports:
        imported(module)
    history = History(store, _CODEC, key_of(options))

    async def look(number: int) -> tuple[CheckpointInfo, dict[str, Encoded]]:
        try:
            return await history.open(number)
        except DamagedCheckpoint:
            raise
        except CheckpointError:
            if (codec := (await history.info(number)).codec) == _CODEC.name:
                raise
            raise CheckpointError(
                f"checkpoint {number} was written with codec={codec!r}, and is not read here: a pickle may "
                "run anything; ask the job while it runs, job.state(step).get(key)"
            ) from None

    found = await (history.newest_whole(look) if number is None else look(number))
    if found is None:
        raise CheckpointError(f"there is no checkpoint in {store}")
    return found


def _key(text: str) -> Hashable:
    """
    A key as it was typed: JSON, with a list for a tuple, and other types as the codec writes them; what is no
    JSON is a text.
    """
    try:
        value = json.loads(text)
    except ValueError:
        return text
    try:
        return _hashable(_UNPACKER.unpack(value))
    except Exception as error:  # of any shape that was typed
        raise CheckpointError(f"{text} is the key of nothing: {error}") from error


def _written_key(kept: Kept) -> str:
    """One of the keys that a step remembers, as it would be typed; empty if there is none."""
    for table in kept.tables.values():
        for _, key, _ in table.items():
            own = key[0] if table.compound else key
            text = _CODEC.encode(list(own) if type(own) is tuple else own).decode()
            return text if len(text) <= _LONG else f"{text[:_LONG]}…"
    return ""


def _hashable(value: Any) -> Hashable:
    key = tuple(map(_hashable, value)) if isinstance(value, list) else value
    hash(key)
    return key


def _shown(value: Any) -> str:
    """
    A value as JSON: what that has no word for is an object of one member whose name begins with `$`, as
    checkpoints write it and keys are typed, but tuples are lists, and of numbers by the block there is the
    `$repr`.
    """
    text = json.dumps(_readable(orjson.loads(_CODEC.encode(value))), ensure_ascii=False)
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def _readable(packed: Any) -> Any:
    """What the codec has made of a value without what only it can read."""
    if type(packed) is list:
        return [*map(_readable, packed)]
    if type(packed) is not dict:
        return packed
    tag = next(iter(packed), "") if len(packed) == 1 else ""
    if tag == "$tuple":
        return _readable(packed[tag])
    if tag in _OF_JSON:
        return _UNPACKER.unpack(packed)
    if tag in _OF_BLOCKS:
        return {"$repr": repr(_UNPACKER.unpack(packed))}
    return {name: _readable(part) for name, part in packed.items()}
