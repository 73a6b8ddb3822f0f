"""
What a harness can drive: whatever it is, it becomes the parts of a segment, anew for each start.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from asyncstream.errors import PipelineError
from asyncstream.operators.base import Operator
from asyncstream.operators.process import KeyedFunction, KeyedProcessFunction
from asyncstream.pipeline import KeyedStream, Stream
from asyncstream.pipeline.keyed import WindowedStream
from asyncstream.testing.segment import Outlet, Parts, parts_of_operator, parts_of_stream
from asyncstream.validation import Duration, is_async_function, refuse, takes
from asyncstream.windowing import AggregateFunction, Evictor, ProcessWindowFunction, Trigger, WindowAssigner

__all__ = ("Around", "Tested", "maker")

Tested: TypeAlias = (
    object
    | Callable[[], object]
    | Callable[[Stream[Any]], object]
    | Callable[[Stream[Any], Stream[Any]], object]
)
"""What `harness` drives: anything, and of the functions what a lambda is given, for type checkers."""

WindowPart: TypeAlias = Trigger | Evictor | AggregateFunction[Any, Any] | ProcessWindowFunction[Any]
"""What works in windows only."""

WINDOW_PARTS = Trigger, Evictor, AggregateFunction, ProcessWindowFunction


@dataclass(frozen=True)
class Around:
    """What an object is put into, to be driven."""

    key_by: Any
    window: WindowAssigner | None
    allowed_lateness: Duration
    name: str

    def parts(self, tested: Any, outlet: Outlet) -> Parts:
        """The parts of one start of `tested`, an object."""
        if isinstance(tested, Operator):
            self.refuse("an operator has its own", "key_by", "window", "allowed_lateness")
            return parts_of_operator(self.name, tested, outlet)
        if isinstance(tested, KeyedProcessFunction):
            self.refuse("a process function is in no window", "window", "allowed_lateness")
            return parts_of_stream(
                lambda stream: self._keyed(stream).process(tested, name=self.name), 1, outlet
            )
        if isinstance(tested, WindowAssigner):
            self.refuse("the windows are what is tested", "window")
            return parts_of_stream(
                lambda stream: self._windowed(stream, tested).collect(name=self.name), 1, outlet
            )
        if isinstance(tested, WINDOW_PARTS):
            return parts_of_stream(lambda stream: self._in_windows(stream, tested), 1, outlet)
        several = isinstance(tested, KeyedFunction)
        raise refuse("what", _EXPECTED, tested, _ADVICE_OF_SEVERAL if several else _ADVICE)

    def refuse(self, because: str, *names: str) -> None:
        """Refuse the arguments of these names, which do not go with what is tested."""
        if given := [name for name in names if getattr(self, name)]:
            raise PipelineError(f"{', '.join(given)}: {because}; leave it out")

    def _keyed(self, stream: Stream[Any]) -> KeyedStream[Any, Any]:
        return stream.key_by(_no_key if self.key_by is None else self.key_by)

    def _windowed(self, stream: Stream[Any], window: WindowAssigner) -> WindowedStream[Any, Any]:
        return self._keyed(stream).window(window).allowed_lateness(self.allowed_lateness)

    def _in_windows(self, stream: Stream[Any], tested: WindowPart) -> Stream[Any]:
        if self.window is None:
            raise PipelineError(
                f"window: a {type(tested).__name__} works in windows; say in which, "
                "e.g. window=TumblingWindows(60)"
            )
        windows = self._windowed(stream, self.window)
        if isinstance(tested, Trigger):
            return windows.trigger(tested).collect(name=self.name)
        if isinstance(tested, Evictor):
            return windows.evictor(tested).collect(name=self.name)
        if isinstance(tested, AggregateFunction):
            return windows.aggregate(tested, name=self.name)
        return windows.process(tested, name=self.name)


_EXPECTED = (
    "a process function, window function, trigger, evictor, aggregate or window assigner, an operator, "
    "or a function from streams to a stream"
)
_ADVICE_OF_SEVERAL = (
    "one of several inputs goes into a function of streams, harness(lambda left, right: "
    "left.key_by(...).connect(right.key_by(...)).process(...)), and push(value, input=1) brings what is right"
)
_ADVICE = "what waits for calls is tested in a pipeline, on virtual time: asyncstream.testing.run_virtual"


def _no_key(value: Any) -> None:
    """The key of all elements where the test has none."""


def maker(what: Any, around: Around) -> Callable[[Outlet], Parts]:
    """What gives the parts for each start; raises `PipelineError` if it cannot be driven by hand."""
    if is_async_function(what):
        raise refuse("what", _EXPECTED, what, _ADVICE)
    if isinstance(what, type) or (inspect.isroutine(what) or isinstance(what, partial)):
        inputs = 0 if isinstance(what, type) else _parameters(what)
        takes("what", what, *("stream",) * inputs)
        if inputs:
            around.refuse("the function says so of its steps", "key_by", "window", "allowed_lateness")
            return partial(parts_of_stream, what, inputs)
        return lambda outlet: around.parts(what(), outlet)
    return _Copies(what, around)


def _parameters(function: Callable[..., Any]) -> int:
    """How many arguments a function must be given."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # many a built-in one does not tell
        raise refuse("what", _EXPECTED, function, _ADVICE) from None
    needed = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(needed)


class _Copies:
    """Gives an object itself at first, and for each later start a copy of what it was before."""

    def __init__(self, what: Any, around: Around) -> None:
        self._next = what
        self._around = around
        self._untouched: Any = None
        self._uncopied: Exception | None = None
        try:
            self._untouched = deepcopy(what)
        except Exception as error:  # of any class of the user's
            self._uncopied = error

    def __call__(self, outlet: Outlet) -> Parts:
        tested, self._next = self._next, None
        if tested is None:
            if self._uncopied is not None:
                raise PipelineError(
                    f"what: no copy can be made of it for another start ({self._uncopied}); give a function "
                    "that makes it"
                ) from self._uncopied
            tested = deepcopy(self._untouched)
        return self._around.parts(tested, outlet)
