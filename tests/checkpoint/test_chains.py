"""Tables as bytes: deltas rebuild a table, whichever way they were cut into parts and compacted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.checkpoint import chains
from asyncstream.checkpoint.chains import BASE, MANY, Chain
from asyncstream.checkpoint.parts import PART, Part, decode_state, encode_state, part_name
from asyncstream.checkpoint.segments import ABOUT, Compaction, decoded, encode_delta, plain_state
from asyncstream.codec import JsonCodec
from asyncstream.errors import CheckpointError
from asyncstream.state import Delta, Kept, Table
from asyncstream.state.rows import GO_BYTES

CODEC = JsonCodec()

NAMESPACES = st.sampled_from([None, 7, (0, 10)])
KEYS = st.sampled_from(["a", "b", 1, ("c", 2)])
STEP = st.tuples(st.sampled_from(["put", "remove", "drop", "cut", "compact"]), NAMESPACES, KEYS)


def name_of(digest: str) -> str:
    return part_name(digest, 1)


@given(st.lists(STEP, max_size=40), st.sampled_from([0, 60, 10**9]))
def test_a_chain_holds_what_the_table_holds(steps: list[tuple[str, Any, Any]], inline_bytes: int) -> None:
    table, chain = Table("t"), Chain("t", name_of, inline_bytes)
    stored: dict[str, bytes] = {}
    for number, (what, namespace, key) in enumerate([*steps, ("cut", None, None)]):
        if what == "put":
            table.put(namespace, key, [number])
        elif what == "remove":
            table.remove(namespace, key)
        elif what == "drop":
            table.drop(namespace)
        elif what == "cut":
            chain.append(encode_delta("step", table.cut(), table, CODEC))
            table.merge()
            stored |= {part.stored: part.data for part in chain.parts if part.stored and part.data}
            chain.committed(stored)
        else:
            compact(chain, stored, meanwhile=lambda: None)
    assert restored(chain, stored) == {
        namespace: list(table.whole(namespace).items()) for namespace in table.namespaces()
    }
    assert all(part.data is None for part in chain.parts if part.stored)


def chunks_of(parts: Iterable[Part], stored: dict[str, bytes]) -> list[bytes]:
    return [chunk for part in parts for chunk in part.chunks_in(stored[part.stored] if part.stored else None)]


def compacted(chunks: list[bytes]) -> list[bytes]:
    work = Compaction(CODEC)
    for _ in work.feed(chunks):
        pass
    return list(work.chunks())


def compact(chain: Chain, stored: dict[str, bytes], meanwhile: Callable[[], None]) -> None:
    fixed = chain.fix()
    meanwhile()
    chunks = compacted(chunks_of(fixed, stored))
    base = [chain.base_of(chunks)] if chunks else []
    stored |= {part.stored: part.data for part in base if part.stored and part.data}
    chain.replace(part.without_data() for part in base)


def restored(chain: Chain, stored: dict[str, bytes]) -> dict[Any, list[Any]]:
    about = CODEC.encode({"cells": {}, "compound": [], "rules": {}})
    encoded = [(ABOUT, about), *((("t", BASE), chunk) for chunk in chunks_of(chain.parts, stored))]
    table = kept(encoded).tables.get("t", Table("t"))
    return {namespace: list(table.whole(namespace).items()) for namespace in table.namespaces()}


def kept(encoded: Any) -> Kept:
    state = decoded("step", encoded, CODEC)
    assert isinstance(state, Kept)
    return state


def delta(*keys: Any, size: int = 1) -> list[bytes]:
    return encode_delta("step", Delta({None: dict.fromkeys(keys, "x" * size)}), Table("t"), CODEC)


def test_what_is_small_is_collected_until_it_is_worth_a_part() -> None:
    chain = Chain("t", name_of, inline_bytes=100)
    for number in range(4):
        chain.append(delta(number, size=40))
    kinds = [(part.path[-1], part.stored is None) for part in chain.parts]
    assert kinds == [("base", True), ("changes", False), ("changes", True)]


def test_a_chain_is_long_when_changes_outgrow_the_base_or_are_many() -> None:
    def is_long(*changes: list[bytes]) -> bool:
        chain = Chain("t", name_of, inline_bytes=0)
        chain.append(delta("base", size=10_000))
        for chunks in changes:
            chain.append(chunks)
        return chain.is_long

    assert not is_long(*(delta(number) for number in range(MANY - 1)))
    assert is_long(*(delta(number) for number in range(MANY)))
    assert is_long(delta("large", size=11_000))
    chain = Chain("t", name_of, inline_bytes=0)
    chain.append(delta("base", size=10_000))
    chain.append(delta("large", size=11_000))
    chain.fix()
    chain.replace([chain.base_of([*delta("base", size=10_000), *delta("large", size=11_000)])])
    assert not chain.is_long


def test_a_large_base_bears_more_parts_with_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "WORTH_A_PART", 1_000)
    chain = Chain("t", name_of, inline_bytes=0)
    chain.append(delta("base", size=1_000 * (MANY + 5)))
    for number in range(MANY + 4):
        chain.append(delta(number))
    assert not chain.is_long
    chain.append(delta("one more"))
    assert chain.is_long


def test_a_manifest_that_may_hold_much_does_not_grow_with_what_is_changed_again() -> None:
    chain = Chain("t", name_of, inline_bytes=10**9)
    chain.append(delta("base"))
    for _ in range(4):
        chain.append(delta("base", size=10_000))
    assert chain.is_long


@pytest.mark.parametrize("inline_bytes", [0, 10**9])
def test_what_changes_while_a_chain_is_compacted_comes_after_that(inline_bytes: int) -> None:
    chain, stored = Chain("t", name_of, inline_bytes), dict[str, bytes]()
    chain.append(delta("a"))
    chain.append(delta("b"))

    def meanwhile() -> None:
        chain.append(delta("c"))
        chain.append(delta("a", size=2))

    stored |= {part.stored: part.data for part in chain.parts if part.stored and part.data}
    compact(chain, stored, meanwhile)
    stored |= {part.stored: part.data for part in chain.parts if part.stored and part.data}
    assert restored(chain, stored) == {None: [("a", "xx"), ("b", "x"), ("c", "x")]}


def test_nothing_changed_makes_no_part() -> None:
    chain = Chain("t", name_of)
    chain.append(encode_delta("step", Delta({}), Table("t"), CODEC))
    assert chain.parts == []


def test_compacting_costs_no_row_and_keeps_no_trace_of_what_is_gone() -> None:
    chunks = [
        *delta("a", "b"),
        *encode_delta("step", Delta({None: {"c": 3}}, {None: {"a"}}), Table("t"), CODEC),
    ]
    left = [row[0] for chunk in compacted(chunks) for _, rows in CODEC.decode(chunk)[1] for row in rows]
    assert left == ["b", "c"]
    chunks += encode_delta("step", Delta({None: {"d": 4}}, {}, {None}), Table("t"), CODEC)
    assert [CODEC.decode(chunk) for chunk in compacted(chunks)] == [["rows", [[None, [["d", 4]]]]]]


def test_a_value_that_the_codec_refuses_names_the_step() -> None:
    with pytest.raises(CheckpointError, match="step 'enrich' cannot be kept"):
        encode_delta("enrich", Delta({None: {"k": object()}}), Table("t"), CODEC)


def test_large_tables_are_encoded_in_chunks() -> None:
    chunks = encode_delta("step", Delta({None: dict.fromkeys(range(3500), 1)}), Table("t"), CODEC)
    assert len(chunks) == 7
    state = plain_state(
        "step",
        [
            (ABOUT, CODEC.encode({"cells": {"n": 1}, "compound": [], "rules": {"n": "sum"}})),
            *((("t", BASE), chunk) for chunk in chunks),
        ],
        CODEC,
    )
    assert state["cells"] == {"n": 1}
    assert state["tables"]["t"] == [[None, [[number, 1] for number in range(3500)]]]


def test_large_values_are_encoded_and_compacted_few_at_a_time() -> None:
    large = "x" * (GO_BYTES // 3)
    most = GO_BYTES + 5000  # nothing else runs while a chunk is encoded, or decoded
    rows = {str(number): large for number in range(50)}
    chunks = encode_delta("step", Delta({None: rows}), Table("t"), CODEC)
    again = compacted(chunks)
    lists = encode_state("step", {"held": [large] * (PART + 1)}, CODEC)
    for encoded in (chunks, again, [data for _, data in lists]):
        assert max(map(len, encoded)) <= most
    assert len(chunks) < 30  # not one by one
    mixed = encode_delta("step", Delta({None: {"small": ""} | rows}), Table("t"), CODEC)
    assert max(map(len, mixed)) <= 11 * len(large)  # one says little of those to come
    assert decode_state("step", lists, CODEC) == {"held": [large] * (PART + 1)}


def test_the_bytes_of_a_part_are_those_of_its_chunks() -> None:
    part = Part.of(("t", BASE), [b"ab", b"", b"cde"], name_of, 10)
    chunks = part.chunks_in()
    assert next(chunks) == b"ab"  # to copy all of them at once may take long
    assert list(chunks) == [b"", b"cde"]
    assert part.without_data() is part


def test_a_part_that_is_made_while_others_are_stored_or_compacted_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread makes parts; to hash megabytes takes long, and lets another thread run."""
    stored: dict[str, bytes] = {}
    table, chain = Table("t"), Chain("t", name_of, 100)
    meanwhile = ["nothing"]
    made, chunks_in = Part.of, Part.chunks_in

    def happens() -> None:
        what, meanwhile[0] = meanwhile[0], "nothing"
        if what == "stored":
            chain.committed(stored)
        elif what == "compacted":
            compact(chain, stored, meanwhile=lambda: None)

    def interrupted_making(*args: Any) -> Part:
        happens()
        part = made(*args)
        if part.stored is not None and part.data is not None:
            stored[part.stored] = part.data
        return part

    def interrupted_reading(part: Part, *data: Any) -> Iterator[bytes]:
        happens()
        return chunks_in(part, *data)

    monkeypatch.setattr(Part, "of", interrupted_making)
    monkeypatch.setattr(Part, "chunks_in", interrupted_reading)
    for number in range(60):
        table.put(None, number, "x" * (200 if number % 4 == 0 else 5))
        cut = encode_delta("step", table.cut(), table, CODEC)
        meanwhile[0] = ("nothing", "stored", "compacted")[number % 3]
        chain.append(cut)
        table.merge()
    assert dict(restored(chain, stored)[None]) == dict(table.whole())


def test_who_goes_through_the_parts_while_they_are_compacted_sees_those_from_before() -> None:
    chain = Chain("t", name_of, 10)
    for number in range(3):
        chain.append([b"%d" % number * 20])
    fixed = chain.fix()
    listing = iter(chain.parts)
    seen = [next(listing)]
    chain.replace([chain.base_of([b"all"])])
    assert [*seen, *listing] == fixed
    assert len(chain.parts) == 1
