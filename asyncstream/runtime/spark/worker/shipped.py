"""
What goes to a worker with every task, and is unpickled by the first of them only.

Spark sends a task its function with all that this refers to: the stage, the user's functions, the schemas.
A micro-batch of a few rows is done sooner than that is unpickled, and than operators have found out again
what they ask about functions once. So it travels as bytes, by whose digest a worker knows that it has it.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Generic, TypeVar

from asyncstream.runtime.spark.wire.values import written_out
from asyncstream.runtime.spark.worker.loop import settle

__all__ = ("Shipped",)

T = TypeVar("T")

MOST: Final = 32
"""Values that a worker keeps; the one that was used longest ago goes."""


class Shipped(Generic[T]):
    """
    A value that each task gets, and that all tasks of a worker share if it `stays`; pickled when this is, in
    the way of PySpark's functions.
    """

    def __init__(self, value: T, *, stays: bool = True) -> None:
        self.value = value
        self._stays = stays

    def __reduce__(self) -> tuple[Any, ...]:
        data = written_out(self.value)
        if not self._stays:
            return _made, (data,)
        return _arrived, (blake2b(data, digest_size=16).digest(), data)


@dataclass
class _Known:
    """A value that has been unpickled here, and the accumulators of PySpark that it refers to."""

    shipped: Shipped[Any]
    accumulators: dict[int, Any]


_worker: OrderedDict[bytes, _Known] = OrderedDict()
"""What this process keeps, by digest."""


def _made(data: bytes) -> Shipped[Any]:
    return Shipped(pickle.loads(data))


def _arrived(digest: bytes, data: bytes) -> Shipped[Any]:
    settle()
    # unpickling an accumulator is what makes PySpark ask it for what a task has added, and each task anew
    from pyspark.accumulators import _accumulatorRegistry as registry

    known = _worker.get(digest)
    if known is None:
        before = set(registry)
        shipped = _made(data)
        made = {number: one for number, one in registry.items() if number not in before}
        known = _worker[digest] = _Known(shipped, made)
        if len(_worker) > MOST:
            _worker.popitem(last=False)
    else:
        for number, one in known.accumulators.items():
            one._value = one.accum_param.zero(one._value)
            registry[number] = one
    _worker.move_to_end(digest)
    return known.shipped
