"""
Tables as bytes: what has changed in a table between two cuts, as chunks that are applied one after the other.

A chunk is one of these, through the codec:

    ["dropped", [namespace, ...]]                       nothing is left of these
    ["gone", [[namespace, [key, ...]], ...]]            these rows were removed
    ["rows", [[namespace, [[key, value], ...]], ...]]   these were put, in this order

What a snapshot of tables says besides is a part of its own, `ABOUT`, the first one of the step.

A namespace or key that is a tuple stands as a list, which neither can be: plain keys need nothing but JSON.

The chunks of a delta come in the order in which it is to be applied, so chunks of consecutive deltas, put one
behind the other, are again those of a delta. A chunk holds about a thousand rows at most: a thread that makes
them lets the event loop run in between, and a restore goes from one to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, Final

from asyncstream.checkpoint.parts import (
    CannotKeep,
    Encoded,
    at_names_in,
    decode_state,
    encode_state,
    in_chunks,
    not_kept,
)
from asyncstream.codec import Codec
from asyncstream.errors import CheckpointError, CodecError, safe_repr
from asyncstream.state import MISSING, Delta, Kept, OldRows, Table, is_snapshot, plain_namespace
from asyncstream.state.keyed import state_in
from asyncstream.state.keys import SOUND
from asyncstream.state.rows import MemoryRows

__all__ = (
    "ABOUT",
    "CHANGES",
    "Compaction",
    "Decoder",
    "decoded",
    "encode_delta",
    "encode_snapshot",
    "plain_state",
)

ABOUT: Final = ("",)
"""What the paths of parts begin with that say what a state of tables is besides its rows."""

CHANGES: Final = "changes"
"""What the path of a part of a table ends with, after the table's name."""

_GROUPS: Final = (tuple, frozenset)

SHELVES: Final = 16
"""Dicts that share keys by their hashes: to let one of a million grow holds the event loop."""


def encode_delta(step: str, delta: Delta, table: Table, codec: Codec) -> list[bytes]:
    """
    The chunks of a delta; raises `CannotKeep`, naming the step, if the codec refuses a value, or if a key
    would not be found again.
    """
    try:
        chunks = list(_chunks(table, delta, codec))
    except CodecError as error:
        raise not_kept(step, *_refused(table, delta, codec, error)) from error
    for key in _of_each_kind(delta, table.compound):
        _check_found_again(step, key, codec)
    return chunks


def _of_each_kind(delta: Delta, compound: bool) -> Iterable[Any]:
    """A key of the stream of each kind that may not be found again."""
    found: dict[Any, Any] = {}
    for rows in delta.rows.values():
        keys = [key[0] for key in rows] if compound else rows
        if SOUND.issuperset(map(type, keys)):
            continue
        parts = chain.from_iterable(key if type(key) is tuple else (key,) for key in keys)
        if not SOUND.issuperset(map(type, parts)):  # a tuple of what is sound is so, too
            found.update(zip(map(_kind, keys), keys, strict=True))
    return [found[kind] for kind in found.keys() - SOUND]


def _kind(key: Any) -> Any:
    """Its type; of a group of parts theirs as well, for each of these may be what is not found again."""
    kind = type(key)
    return (kind, *map(_kind, key)) if issubclass(kind, _GROUPS) else kind


def _check_found_again(step: str, key: Any, codec: Codec) -> None:
    """
    Refuse a key that does not equal what is read of it, as an exception, or an object of a class without
    `__eq__`, do not: behind a restore nothing would find what was kept for it.
    """
    where = f"key {safe_repr(key, 80)}"
    try:
        read = codec.decode(codec.encode(key))
    except CodecError as error:
        raise not_kept(step, where, error) from error
    if read != key or hash(read) != hash(key):
        raise CannotKeep(
            f"step {step!r} cannot be kept in a checkpoint: {where}: it does not equal a copy of itself; "
            "have key_by return what compares by value"
        )


def _refused(table: Table, delta: Delta, codec: Codec, error: CodecError) -> tuple[str, CodecError]:
    """Where in a table the codec refuses a value, in words of the user's, and with what words of its own."""
    _, _, rows = table.saved(delta)
    for _, of in rows:
        for key, value in of:
            own = key[0] if table.compound else key  # a timer's key is the stream's, and more
            for part, where in ((own, "key"), (value, f"{_in_words(table.name)} of key")):
                try:
                    codec.encode(part)
                except CodecError as found:
                    return f"{where} {safe_repr(own, 80)}{at_names_in(found.path)}", found
    return _in_words(table.name), error


def _in_words(table: str) -> str:
    return f"state {state!r}" if (state := state_in(table)) else "what it holds"


def _chunks(table: Table, delta: Delta, codec: Codec) -> Iterator[bytes]:
    dropped, gone, rows = table.saved(delta)
    yield from in_chunks(map(_listed, dropped), lambda spaces: codec.encode(["dropped", spaces]))
    keys_gone = ((namespace, _listed(key)) for namespace, keys in gone.items() for key in keys)
    yield from in_chunks(keys_gone, partial(_encoded, "gone", codec))
    put = ((namespace, [_listed(key), value]) for namespace, of in rows for key, value in of)
    yield from in_chunks(put, partial(_encoded, "rows", codec))


def _encoded(kind: str, codec: Codec, entries: Iterable[tuple[Any, Any]]) -> bytes:
    """A chunk of entries, those of one namespace together."""
    groups: list[list[Any]] = []
    last: Any = MISSING
    for namespace, entry in entries:
        if namespace != last:
            groups.append([_listed(namespace), []])
            last = namespace
        groups[-1][1].append(entry)
    return codec.encode([kind, groups])


def _listed(key: Any) -> Any:
    return list(key) if type(key) is tuple else key


def _hashable(key: Any) -> Any:
    return tuple(key) if type(key) is list else key


def encode_snapshot(step: str, state: Any, codec: Codec) -> Encoded:
    """
    A step's snapshot as bytes, of tables or of anything else; raises `CannotKeep` if the codec refuses a
    value, naming the step.
    """
    if not is_snapshot(state):
        return encode_state(step, state, codec)
    about = {name: part for name, part in state.items() if name != "tables"}
    encoded: Encoded = [(ABOUT + path, data) for path, data in encode_state(step, about, codec)]
    for name, kept in state["tables"].items():
        rows = {plain_namespace(namespace): dict(map(tuple, some)) for namespace, some in kept}
        encoded += [((name, CHANGES), data) for data in encode_delta(step, Delta(rows), Table(name), codec)]
    return encoded


class Decoder:
    """
    A step's state, decoded chunk by chunk; `new_old` makes a place for the oldest generation of a table.
    """

    def __init__(self, step: str, codec: Codec, new_old: Callable[[], OldRows] | None = None) -> None:
        self._step = step
        self._codec = codec
        self._new_old = new_old
        self._plain: Encoded = []  # all but the rows of tables
        self._tables: dict[str, Table] = {}
        # the tables of a step have the same keys, each of which is to stand in memory once, if it does at all
        self._known: list[dict[str, str]] = [{} for _ in range(SHELVES if new_old is None else 0)]

    def feed(self, path: tuple[str, ...], chunk: bytes) -> None:
        """
        Take the next chunk; raises `CheckpointError` if a value cannot be read any more, naming the step.
        """
        if not self._plain or self._plain[0][0] != ABOUT or path[:1] == ABOUT:
            self._plain.append((path, chunk))
            return
        name = path[0]
        if name not in self._tables:
            old = None if self._new_old is None else self._new_old()
            self._tables[name] = Table(name, compound=name in self._about["compound"], old=old)
        try:
            _apply(self._tables[name], chunk, self._codec, self._known)
        except CodecError as error:
            raise CheckpointError(
                f"the checkpoint's state of step {self._step!r} cannot be read: {error}"
            ) from error

    def end(self) -> Any:
        """A `Kept` if it is a state of tables, else what was kept. Raises as `feed`."""
        if self._plain[0][0] != ABOUT:
            return decode_state(self._step, self._plain, self._codec)
        return Kept(self._tables, self._about)

    @cached_property
    def _about(self) -> Any:
        """What the state is besides its tables; asked for when all of that has come."""
        return decode_state(self._step, [(path[1:], data) for path, data in self._plain], self._codec)


def decoded(step: str, encoded: Encoded, codec: Codec) -> Any:
    """As a `Decoder`, in one go."""
    decoder = Decoder(step, codec)
    for path, data in encoded:
        decoder.feed(path, data)
    return decoder.end()


def plain_state(step: str, encoded: Encoded, codec: Codec) -> Any:
    """A step's state as a snapshot. Raises as `Decoder.feed`."""
    state = decoded(step, encoded, codec)
    return state.snapshot() if isinstance(state, Kept) else state


def _apply(table: Table, data: bytes, codec: Codec, known: Sequence[dict[str, str]]) -> None:
    """
    Have in a table, which keeps keys and values as they are saved, what a chunk says; nothing is young. Text
    that may be part of keys is `known` by itself, in the dict of its hash, which grows, if there are any.
    """
    kind, entries = codec.decode(data)
    if kind == "dropped":
        table.apply(Delta({}, {}, set(map(_hashable, entries))))
    elif kind == "gone":
        table.apply(Delta({}, {_hashable(space): set(map(_hashable, keys)) for space, keys in entries}))
    else:
        count = len(known)
        for _, rows in entries:
            for row in rows:
                key = row[0]
                if type(key) is list:
                    row[0] = tuple(
                        known[hash(part) % count].setdefault(part, part)
                        if count and type(part) is str
                        else part
                        for part in key
                    )
                elif count and type(key) is str:
                    row[0] = known[hash(key) % count].setdefault(key, key)
        table.put_old((_hashable(space), rows) for space, rows in entries)


class Compaction:
    """Makes one base of many parts of a table; `new_old` makes a place for all rows."""

    def __init__(self, codec: Codec, new_old: Callable[[], OldRows] | None = None) -> None:
        self._codec = codec
        self._old = MemoryRows() if new_old is None else new_old()
        self._table = Table("compacted", old=self._old)

    def feed(self, chunks: Iterable[bytes]) -> Iterator[None]:
        """
        Take the chunks of the next part, in slices; raises `CodecError` if a value cannot be read any more.
        """
        for chunk in chunks:
            _apply(self._table, chunk, self._codec, ())
            yield

    def chunks(self) -> Iterator[bytes]:
        """The chunks of a delta from nothing that comes to the same as all of them, which is gone then."""
        entries = self._old.leaving() if isinstance(self._old, MemoryRows) else self._old.entries()
        rest = ((namespace, [_listed(key), value]) for namespace, key, value in entries)
        return in_chunks(rest, partial(_encoded, "rows", self._codec))

    def close(self) -> None:
        """Let go of the rows."""
        self._table.clear()
