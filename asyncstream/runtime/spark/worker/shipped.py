"""
What goes to a worker with every task, and is unpickled by the first of them only.

Spark sends a task its function with all that this refers to: the stage, the user's functions, the schemas.
A micro-batch of a few rows is done sooner than that is unpickled, and than operators have found out again
what they ask about functions once. So it travels as bytes, by whose digest a worker knows that it has it.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Generic, TypeVar

from asyncstream.errors import PipelineError, describe_error
from asyncstream.runtime.spark.stages import Stage
from asyncstream.runtime.spark.wire.values import written_out
from asyncstream.runtime.spark.worker.loop import settle

__all__ = ("Shipped", "sending")

T = TypeVar("T")

MOST: Final = 32
"""Values that a worker keeps; the one that was used longest ago goes."""


class Shipped(Generic[T]):
    """
    A value that each task gets, and that all tasks of a worker share if it `stays`; pickled when this is, in
    the way of PySpark's functions. What cannot be pickled is blamed on a step of the `stage`.
    """

    def __init__(self, value: T, *, stage: Stage | None = None, stays: bool = True) -> None:
        self.value = value
        self._stage = stage
        self._stays = stays

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            data = written_out(self.value)
        except Exception:
            if self._stage is not None:
                _blame_a_step(self._stage)
            raise
        if not self._stays:
            return _made, (data,)
        return _arrived, (blake2b(data, digest_size=16).digest(), data)


def _blame_a_step(stage: Stage) -> None:
    """Raises `PipelineError` for the first step of which something cannot be pickled."""
    parts: list[tuple[str, object]] = [(step.name, step) for step in stage.steps]
    parts += [(route.reader, route.key_by) for route in (*stage.entries, *stage.exits)]
    for name, part in parts:
        try:
            written_out(part)
        except Exception as error:
            told = (
                str(error)  # which says what to do
                if isinstance(error, PipelineError)
                else f"{describe_error(error)}; have its function make what cannot be pickled where it runs, "
                "in open() if it has that"
            )
            raise PipelineError(f"step {name!r} cannot be sent to Spark's workers: {told}") from error


@contextmanager
def sending() -> Iterator[None]:
    """What is refused in this block is raised as it is: PySpark has an error of its own for its words."""
    try:
        yield
    except pickle.PicklingError as error:
        refused = error.__context__
        if isinstance(refused, PipelineError):
            raise refused from refused.__cause__
        raise


@dataclass
class _Known:
    """A value that has been unpickled here, and the accumulators of PySpark that it refers to."""

    shipped: Shipped[Any]
    accumulators: dict[int, Any]


_worker: OrderedDict[bytes, _Known] = OrderedDict()
"""What this process keeps, by digest."""


def _made(data: bytes) -> Shipped[Any]:
    try:
        return Shipped(pickle.loads(data))
    except ModuleNotFoundError as error:
        raise PipelineError(
            f"a worker of Spark has no module {error.name!r}, which the pipeline's functions need: install "
            "it there, or send its file along, by spark.addArtifacts(path, pyfile=True) or by spark-submit "
            "--py-files"
        ) from error


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
