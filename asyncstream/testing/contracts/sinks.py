"""
What a sink promises, as checks for one's own: those of every sink, or of a transactional one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from asyncstream.connectors.base import Sink
from asyncstream.testing.contracts.checks import Check, differing
from asyncstream.testing.contracts.epochs import TransactionalContract
from asyncstream.testing.contracts.writes import WRITES, SinkContract
from asyncstream.validation import flag

__all__ = ("sink_contract",)


def sink_contract(
    make: Callable[[Path], Sink[Any]],
    read: Callable[[Path], Sequence[Any] | Awaitable[Sequence[Any]]],
    elements: Sequence[Any],
    *,
    transactional: bool = True,
    durable: bool = True,
    fenced: bool = True,
    in_order: bool = True,
    rewinds: bool = True,
) -> list[Check]:
    """
    The checks that your own sink must pass. With pytest::

        @pytest.mark.parametrize("check", sink_contract(make, read, ELEMENTS), ids=str)
        async def test_my_sink(check, tmp_path):
            await check(tmp_path)

    Args:
        make: gives a new sink, as another process would make it, that writes into the folder; if it writes
            elsewhere, the folder's name tells one place from another. Nothing is there before.
        read: what readers see there now, as elements. It may be `async def`.
        elements: what to write; at least eight, of which no two are equal.
        transactional: it is a `TransactionalSink`, and keeps what that promises.
        durable: what is written outlives the process. Crashes are processes then that end in the middle;
            `make` must work in a forked one.
        fenced: it is shared by processes, and refuses a job that another has followed.
        in_order: readers see elements in the order in which they were written.
        rewinds: it can take out what is committed. A sink that cannot goes on from the newest checkpoint
            only, and needs no fence: a job that was followed can commit nothing but what that one says.

    Raises:
        PipelineError: if there are too few elements, or two are equal.
    """
    differing("elements", elements, WRITES)
    flag("transactional", transactional)
    flag("durable", durable)
    flag("fenced", fenced)
    flag("rewinds", rewinds)
    if not transactional:
        return SinkContract(make, read, elements, in_order).checks()
    return TransactionalContract(make, read, elements, in_order, durable, fenced, rewinds).checks()
