"""
The plain operators: one function applied to each element, no memory.

Each takes a batch with one comprehension. Only when the user's function raises is the batch gone through
again element by element, to name the one it failed on; the elements before it have then been passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any

from asyncstream.elements import Timestamps
from asyncstream.errors import safe_repr
from asyncstream.operators.base import Operator, pairs

__all__ = ("Branch", "Filter", "FlatMap", "Map", "several")


class Map(Operator):
    """
    Emits when: an element arrives: the function's result, with the element's timestamp.

    Snapshot holds: nothing.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def process(self, value: Any, timestamp: int | None) -> None:
        try:
            result = self._function(value)
        except Exception as error:
            raise self.blame(value, error) from error
        self.out.process(result, timestamp)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        results: list[Any] = []
        try:
            # extend keeps what came before a failure, which a comprehension would throw away
            results.extend(map(self._function, values))
        except Exception as error:
            done = len(results)
            self.out.process_batch(results, timestamps and timestamps[:done])
            raise self.blame(values[done], error) from error
        self.out.process_batch(results, timestamps)


class Filter(Operator):
    """
    Emits when: an element arrives for which the function gives something true.

    Snapshot holds: nothing.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def process(self, value: Any, timestamp: int | None) -> None:
        try:
            keep = self._function(value)
        except Exception as error:
            raise self.blame(value, error) from error
        if keep:
            self.out.process(value, timestamp)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        verdicts: list[Any] = []
        try:
            verdicts.extend(map(self._function, values))
        except Exception as error:
            self._pass(values, timestamps, verdicts)
            raise self.blame(values[len(verdicts)], error) from error
        self._pass(values, timestamps, verdicts)

    def _pass(self, values: Sequence[Any], timestamps: Timestamps, verdicts: list[Any]) -> None:
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

    def process(self, value: Any, timestamp: int | None) -> None:
        self.process_batch([value], [timestamp])

    def _pass(self, values: Sequence[Any], timestamps: Timestamps, verdicts: list[Any]) -> None:
        super()._pass(values, timestamps, verdicts)
        others = [not verdict for verdict in verdicts]
        kept = list(compress(values, others))
        if kept:
            stamps = timestamps and list(compress(timestamps, others))
            self.side_output(self.OTHERS).process_batch(kept, stamps)


class FlatMap(Operator):
    """
    Emits when: an element arrives: each result of the function, with the element's timestamp.

    Snapshot holds: nothing.
    """

    def __init__(self, function: Callable[[Any], Iterable[Any]]) -> None:
        super().__init__()
        self._function = function

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        results: list[Any] = []
        stamps: list[int | None] = []
        try:
            for value, timestamp in pairs(values, timestamps):
                try:
                    new = several(self._function(value))
                except Exception as error:
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
