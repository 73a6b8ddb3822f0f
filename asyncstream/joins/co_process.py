"""
Several streams handled by one function of the user's, which shares state and timers of a key among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from asyncstream.elements import Timestamps
from asyncstream.operators.emitting import Emitter
from asyncstream.operators.failures import OnError
from asyncstream.operators.keyed_context import KeyedContext
from asyncstream.operators.ports import MultiInput
from asyncstream.operators.process import KeyedFunction, KeyedFunctionOperator
from asyncstream.operators.process_spec import KeyedFunctionSpec
from asyncstream.operators.results import FirstKeys
from asyncstream.operators.spec import KeyBy

__all__ = ("CoProcessSpec", "FunctionInput", "KeyedCoProcessFunction", "KeyedCoProcessOperator")

Left = TypeVar("Left")
Right = TypeVar("Right")
Out = TypeVar("Out")


class KeyedCoProcessFunction(KeyedFunction, Generic[Left, Right, Out]):
    """
    The user's code for one key of several streams: override `process_left` and `process_right`, or
    `process_input` where there are more than two streams, and what is needed of the rest.

    State and timers of a key are shared by all inputs. Elements come in the order in which they arrive;
    neither input is held back for the other. Event time is that of the slowest input that is not idle.
    See `KeyedFunction` for what holds of all such functions.
    """

    def open(self, ctx: KeyedContext, /) -> None:
        """Called once before the first element: the place to fetch state handles with `ctx.state`."""

    def process_left(self, value: Left, ctx: KeyedContext, out: Emitter[Out], /) -> None:
        """Handle an element of the stream that was connected."""
        raise TypeError(f"{type(self).__name__} does not override process_left")

    def process_right(self, value: Right, ctx: KeyedContext, out: Emitter[Out], /) -> None:
        """Handle an element of the stream that it was connected with."""
        raise TypeError(f"{type(self).__name__} does not override process_right")

    def process_input(self, number: int, value: Any, ctx: KeyedContext, out: Emitter[Out], /) -> None:
        """
        Handle an element of any input.

        Args:
            number: of its stream, counted from 0, in the order of `a.connect(b, c)`.
        """
        if number > 1:
            raise TypeError(f"{type(self).__name__} does not override process_input, and has input {number}")
        (self.process_right if number else self.process_left)(value, ctx, out)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Out], /) -> None:
        """Handle a timer of `ctx.key`; see `KeyedFunction`."""


class FunctionInput:
    """Takes the elements of one input of an operator with a function, by the method that it has for them."""

    def __init__(
        self, operator: KeyedFunctionOperator, key_by: KeyBy, process_element: Callable[..., object]
    ) -> None:
        self._operator = operator
        self._key_by: KeyBy = FirstKeys(self, key_by)
        self._process_element = process_element

    def __call__(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._operator.process_with(values, timestamps, self._key_by, self._process_element)


class KeyedCoProcessOperator(MultiInput, KeyedFunctionOperator):
    """
    Runs a `KeyedCoProcessFunction`: emits, completes and keeps what `KeyedProcessOperator` does.

    An input that comes back from idleness and is behind is waited for.
    """

    declares = KeyedCoProcessFunction

    def __init__(
        self,
        keys: Sequence[KeyBy],
        function: KeyedCoProcessFunction[Any, Any, Any],
        on_error: OnError = "fail",
    ) -> None:
        """`keys` give the key of an element, for each input."""
        KeyedFunctionOperator.__init__(self, function, on_error)
        is_own = type(function).process_input is not KeyedCoProcessFunction.process_input
        methods: list[Callable[..., object]] = [function.process_left, function.process_right]
        if is_own:
            methods = [partial(function.process_input, number) for number in range(len(keys))]
        inputs = [FunctionInput(self, *each) for each in zip(keys, methods, strict=True)]
        self.have_ports(*inputs, holds_back=True)


@dataclass(frozen=True)
class CoProcessSpec(KeyedFunctionSpec):
    """
    Runs the user's own state machine for each key of several streams.

    Attributes:
        function: the user's.
        on_error: what becomes of an element on which it raises.
        key_of: for each input, what gives the key of an element.
    """

    function: KeyedCoProcessFunction[Any, Any, Any]
    key_of: tuple[KeyBy, ...]

    operator = KeyedCoProcessOperator

    def build(self) -> KeyedCoProcessOperator:
        return KeyedCoProcessOperator(self.key_of, self.function, self.on_error)

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return self.key_of
