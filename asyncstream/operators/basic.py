"""
The plain operators: one function applied to each element, no memory.

Each takes a batch in one go. Where the user's function raises, what came before that element is passed on,
then the element goes where `on_error` says, and the batch goes on behind it: no element is given to the
function twice. In a plain function `CancelledError` is an error like any other, but one that ends the job:
here, what is cancelled is not about an element.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from itertools import compress
from types import GeneratorType
from typing import Any, ClassVar, Final, TypeAlias

from asyncstream.elements import Timestamps
from asyncstream.errors import safe_repr
from asyncstream.operators.base import Operator
from asyncstream.operators.failures import FAILED, Failures, OnError, failure_counters, routed_to
from asyncstream.operators.fields import fields_read
from asyncstream.operators.origins import compressed, spread
from asyncstream.operators.results import (
    KEY_ADVICE,
    PROBATION,
    Kinds,
    NotAValue,
    close_all,
    is_deferred,
    not_a_value,
)
from asyncstream.operators.spec import Spec
from asyncstream.state.keys import SOUND, check_key

__all__ = ("Branch", "CheckKey", "Filter", "FlatMap", "Map", "PerElement", "PerElementSpec", "several")

_Batch: TypeAlias = tuple[Sequence[Any], Timestamps]
"""Elements and their timestamps."""


class PerElement(Operator):
    """
    What is made of a function of one element.

    A chain of such steps is run by its first: it hands each batch from step to step, and control elements,
    with which these steps do nothing, to where the chain ends. Were each to call the next, a thousand of them
    would be more calls inside one another than Python allows.

    Attributes:
        sides: tags of outputs by which it passes elements on.
        passes_on: it passes them on by the main output, too.
    """

    sides: ClassVar[tuple[str, ...]] = ()
    passes_on: ClassVar[bool] = True

    def __init__(self, function: Callable[[Any], Any], on_error: OnError = "fail") -> None:
        super().__init__()
        self._function = function
        self._failures = Failures(self, on_error)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        step = self
        while values:
            values, timestamps = step._through(values, timestamps)
            behind = step.out
            if not isinstance(behind, PerElement):
                if values:
                    behind.process_batch(values, timestamps)
                return
            step = behind

    def at_once(self) -> Sequence[Operator]:
        return self.outputs()

    def outputs(self) -> tuple[Operator, ...]:
        """What the chain that begins here ends in, and the side outputs on the way, the nearest last."""
        sides: list[Operator] = []
        step = self
        while True:
            sides[:0] = step.side.values()
            if not isinstance(step.out, PerElement):
                return (step.out, *sides)
            step = step.out

    def _through(self, values: Sequence[Any], timestamps: Timestamps) -> _Batch:
        """What comes of these elements; what is before one that fails is passed on already."""
        results = self._results(values)
        count, start = len(values), 0
        while start < count:
            found: list[Any] = []
            failure: BaseException | None = None
            try:
                # extend keeps what came before a failure, and the iterator goes on behind it
                found.extend(results)
            except BaseException as error:
                failure = error
            end = start + len(found)
            if failure is None and end < count:
                failure = StopIteration()  # of the user's: it ends an iteration without a word
            if len(found) == count:
                made = self._made(values, timestamps, found)
            else:
                made = self._made(values[start:end], timestamps and timestamps[start:end], found)
            if failure is None:
                return made
            if made[0]:
                self.out.process_batch(*made)
            self._failures.take(values[end], timestamps[end] if timestamps else None, failure)
            start = end + 1
        return (), None

    def _results(self, values: Sequence[Any]) -> Iterator[Any]:
        """What the function gives for each of the elements, when asked."""
        return map(self._function, values)

    def _made(self, values: Sequence[Any], timestamps: Timestamps, results: list[Any]) -> _Batch:
        """What goes on of these elements, of which each has a result; perhaps there are none."""
        raise TypeError(f"{type(self).__name__} does not override _made")

    def metrics(self) -> dict[str, int]:
        return self._failures.metrics()


class Map(PerElement):
    """
    Emits when: an element arrives: the function's result, with the element's timestamp.

    Snapshot holds: nothing.
    """

    passes_on = False

    def __init__(self, function: Callable[[Any], Any], on_error: OnError = "fail") -> None:
        super().__init__(function, on_error)
        self._kinds = Kinds()
        self._unproven = PROBATION

    def process(self, value: Any, timestamp: int | None) -> None:
        step = self
        while True:
            try:
                result = step._function(value)
            except BaseException as error:
                step._failures.take(value, timestamp, error)
                return
            if type(result) not in step._kinds.known:
                step._check([value], None, [result])
            behind = step.out
            if not isinstance(behind, Map):
                behind.process(result, timestamp)
                return
            step, value = behind, result

    def _made(self, values: Sequence[Any], timestamps: Timestamps, results: list[Any]) -> _Batch:
        if results and (self._unproven or type(results[0]) not in self._kinds.known):
            self._check(values, timestamps, results)
        return results, timestamps

    def _check(self, values: Sequence[Any], timestamps: Timestamps, results: list[Any]) -> None:
        """Refuse results that are no values, after what came before them."""
        self._unproven = max(0, self._unproven - len(results))
        bad = self._kinds.first_deferred(results)
        if bad is None:
            return
        if bad:
            self.out.process_batch(results[:bad], timestamps and timestamps[:bad])
        advice = "use async_map for a function that is to be awaited"
        if isinstance(results[bad], Generator):
            advice = "use flat_map for a function that yields"
        raise self.blame(values[bad], not_a_value(results[bad:], advice))


class Filter(PerElement):
    """
    Emits when: an element arrives for which the function gives something true.

    Snapshot holds: nothing.
    """

    def _made(self, values: Sequence[Any], timestamps: Timestamps, results: list[Any]) -> _Batch:
        start = 0
        for place in () if _VERDICTS.issuperset(map(type, results)) else range(len(results)):
            try:
                results[place] = _verdict(results[place])
            except BaseException as error:
                before = slice(start, place)
                kept = self._kept(values[before], timestamps and timestamps[before], results[before])
                if kept[0]:
                    self.out.process_batch(*kept)
                if isinstance(error, NotAValue):
                    close_all(results[place:])
                self._failures.take(values[place], timestamps[place] if timestamps else None, error)
                start = place + 1
        if start:
            values, timestamps, results = values[start:], timestamps and timestamps[start:], results[start:]
        return self._kept(values, timestamps, results)

    def _kept(self, values: Sequence[Any], timestamps: Timestamps, verdicts: list[Any]) -> _Batch:
        if all(verdicts):
            return values, timestamps
        return list(compress(values, verdicts)), compressed(timestamps, verdicts)


_VERDICTS: Final = frozenset({bool, int, float, str, type(None), list, tuple, dict, set})
"""Types whose truth cannot fail, and that a function returns on purpose."""


def _verdict(result: Any) -> bool:
    if result is NotImplemented or is_deferred(result):
        raise not_a_value(
            [result], "a filter asks for something true or false; await it in an async_map before"
        )
    return bool(result)  # a function of the user's, too: that of a NumPy array fails


class Branch(Filter):
    """
    Emits when: an element arrives: on the main output if the function gives something true, else on the
    side output `OTHERS`.

    Snapshot holds: nothing.
    """

    OTHERS = "others"
    sides = (OTHERS,)

    def _kept(self, values: Sequence[Any], timestamps: Timestamps, verdicts: list[Any]) -> _Batch:
        kept = super()._kept(values, timestamps, verdicts)
        if kept[0]:
            self.out.process_batch(*kept)  # at once: it goes before the others of this batch
        others = super()._kept(values, timestamps, [not verdict for verdict in verdicts])
        if others[0]:
            self.side_output(self.OTHERS).process_batch(*others)
        return (), None


class CheckKey(PerElement):
    """
    Emits when: an element arrives of which the function gives a key: the element as it came.

    The steps behind it ask for the key again: it belongs to the element, and is the same each time.
    Snapshot holds: nothing.
    """

    def _results(self, values: Sequence[Any]) -> Iterator[Any]:
        return map(_checked_key, map(self._function, values))

    def _made(self, values: Sequence[Any], timestamps: Timestamps, results: list[Any]) -> _Batch:
        return values, timestamps


def _checked_key(key: Any) -> None:
    if type(key) not in SOUND:
        if is_deferred(key):
            raise not_a_value([key], KEY_ADVICE)
        check_key(key)


class FlatMap(PerElement):
    """
    Emits when: an element arrives: each result of the function, with the element's timestamp. Of an element
    on which the function fails half-way, nothing.

    Snapshot holds: nothing.
    """

    passes_on = False

    def _results(self, values: Sequence[Any]) -> Iterator[Any]:
        return map(several, map(self._function, values))

    def _made(self, values: Sequence[Any], timestamps: Timestamps, results: list[Any]) -> _Batch:
        flat: list[Any] = []
        for new in results:
            flat += new
        return flat, spread(timestamps, map(len, results))


@dataclass(frozen=True)
class PerElementSpec(Spec):
    """Applies a function to each element; to the operator it is what it `applies`."""

    applies: type[PerElement]
    function: Callable[[Any], Any]
    on_error: OnError

    def build(self) -> PerElement:
        return self.applies(self.function, self.on_error)

    @property
    def operator(self) -> type[PerElement]:
        return self.applies

    @property
    def required(self) -> tuple[str, ...]:
        return self.applies.sides + routed_to(self.on_error)

    @property
    def frames(self) -> int:
        return 4 if self.applies.sides else 3

    @property
    def is_chained(self) -> bool:
        return not self.applies.sides

    @property
    def reads(self) -> frozenset[str] | None:
        return fields_read([self.function])

    def passes_on(self, tag: str | None) -> bool:
        # a function that takes fields only has no element to return
        return tag is not None or self.applies.passes_on

    def keeps_origins(self, tag: str | None) -> bool:
        return tag != FAILED

    @property
    def counters(self) -> tuple[str, ...]:
        return failure_counters(self.on_error)


_PLAIN: Final = (list, tuple, GeneratorType)
"""What functions give that yield or return several: beyond doubt, and told without abstract classes."""


def several(results: Any) -> tuple[Any, ...]:
    """
    The results of a flat map by themselves, for the function may fill its list anew; raises `TypeError` if
    they are not an iterable of results. Text, bytes and mappings are iterable too, but a function that
    returns one does not mean its letters or keys.
    """
    if isinstance(results, _PLAIN):
        return tuple(results)  # which the garbage collector looks at no more, as at a list
    if isinstance(results, Awaitable | AsyncGenerator):
        advice = "what is to be awaited belongs in an async_flat_map, which returns a list"
        raise not_a_value([results], advice, "a flat map")
    if isinstance(results, str | bytes | bytearray | Mapping) or not isinstance(results, Iterable):
        raise TypeError(f"a flat map returns an iterable of results (a list, say), got {safe_repr(results)}")
    return tuple(results)
