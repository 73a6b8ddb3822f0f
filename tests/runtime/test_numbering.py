"""Numbers of elements of splits, which come mixed in another order the next time."""

from __future__ import annotations

from asyncstream import SourceBatch
from asyncstream.operators.origins import Origin, Placed
from asyncstream.runtime.aio.numbering import Numbering


def origins(numbering: Numbering, batch: SourceBatch[int]) -> list[Origin | None]:
    timestamps = numbering.number(batch)
    assert isinstance(timestamps, Placed)
    return list(timestamps.origins)


def test_elements_of_a_split_have_the_same_numbers_in_whatever_order_the_splits_come() -> None:
    numbering = Numbering("pipeline", "source")
    origins(numbering, SourceBatch([1, 2], split="a"))
    saved = numbering.saved({"position": 1})
    a, b = SourceBatch([3], split="a"), SourceBatch([1], split="b")
    first = [origins(numbering, a), origins(numbering, b)]
    again = Numbering("pipeline", "source")
    again.restore(saved)
    assert [origins(again, b), origins(again, a)] == [first[1], first[0]]
    assert len({origin for found in first for origin in found}) == 2


def test_a_source_without_splits_is_kept_as_it_was() -> None:
    numbering = Numbering("pipeline", "source")
    origins(numbering, SourceBatch([1, 2]))
    (kept,) = (value for key, value in numbering.saved(7).items() if key != "position")
    assert kept[1:] == [2]
