"""
The plain operators: one function applied to each element, no memory.

Each takes a batch in one go. When the user's function raises, what came before that element is passed on
first. In a plain function `CancelledError` is an error like any other: nobody here cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from operator import truth
from typing import Any

from asyncstream.elements import Timestamps
from asyncstream.errors import safe_repr
from asyncstream.operators.base import Operator, pairs

__all__ = ("Branch", "Filter", "FlatMap", "Map", "several")


class _PerElement(Operator):
    """What is made of a function of one element."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def _all(self, results: Iterator[Any], values: Sequence[Any]) -> tuple[list[Any], BaseException | None]:
        """The results, one for each value; after a failure those before it, and the error to raise then."""
        found: list[Any] = []
        try:
            # extend keeps what came before a failure, which a comprehension would throw away
            found.extend(results)
        except BaseException as error:
            return found, self.blame(values[len(found)], error)
        if len(found) < len(values):  # a StopIteration of the user's ends an iterator without a word
            return found, self.blame(values[len(found)], StopIteration())
        return found, None


class Map(_PerElement):
    """
    Emits when: an element arrives: the function's result, with the element's timestamp.

    Snapshot holds: nothing.
    """

    def process(self, value: Any, timestamp: int | None) -> None:
        try:
            result = self._function(value)
        except BaseException as error:
            raise self.blame(value, error) from error
        self.out.process(result, timestamp)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        results, failure = self._all(map(self._function, values), values)
        if failure is None:
            self.out.process_batch(results, timestamps)
            return
        if results:
            self.out.process_batch(results, timestamps and timestamps[: len(results)])
        raise failure


class Filter(_PerElement):
    """
    Emits when: an element arrives for which the function gives something true.

    Snapshot holds: nothing.
    """

    def process(self, value: Any, timestamp: int | None) -> None:
        self.process_batch([value], [timestamp])

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        # truth: it is also a function of the user's, and may fail, as that of a NumPy array does
        verdicts, failure = self._all(map(truth, map(self._function, values)), values)
        self._pass(values, timestamps, verdicts)
        if failure is not None:
            raise failure

    def _pass(self, values: Sequence[Any], timestamps: Timestamps, verdicts: list[bool]) -> None:
        kept = list(compress(values, verdicts))
        if kept:
            self.out.process_batch(kept, timestamps and list(compress(timestamps, verdicts)))


class Branch(Filter):
    """
    Emits when: an element arrives: on the main output if the function gives something true, else on the
    side output `OTHERS`.

    Snapshot holds: nothing.
    """

    OTHERS = "others"

    def _pass(self, values: Sequence[Any], timestamps: Timestamps, verdicts: list[bool]) -> None:
        super()._pass(values, timestamps, verdicts)
        others = [not verdict for verdict in verdicts]
        kept = list(compress(values, others))
        if kept:
            stamps = timestamps and list(compress(timestamps, others))
            self.side_output(self.OTHERS).process_batch(kept, stamps)


class FlatMap(_PerElement):
    """
    Emits when: an element arrives: each result of the function, with the element's timestamp.

    Snapshot holds: nothing.
    """

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        results: list[Any] = []
        stamps: list[int | None] = []
        try:
            for value, timestamp in pairs(values, timestamps):
                try:
                    new = several(self._function(value))
                except BaseException as error:
                    raise self.blame(value, error) from error
                results += new
                stamps += [timestamp] * len(new)
        finally:
            if results:
                self.out.process_batch(results, timestamps and stamps)


def several(results: Any) -> list[Any]:
    """
    The results of a flat map as a list.

    Raises:
        TypeError: if they are not an iterable of results. Text, bytes and mappings are iterable too, but
            nobody who returns one means its letters or keys.
    """
    if isinstance(results, list):
        return results
    if isinstance(results, str | bytes | bytearray | dict) or not isinstance(results, Iterable):
        raise TypeError(f"a flat map returns an iterable of results (a list, say), got {safe_repr(results)}")
    return list(results)
