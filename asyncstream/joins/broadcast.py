"""
A keyed stream beside one whose elements are for all keys: rules, settings, tables that are small.

The broadcast input writes the *broadcast state*, maps that belong to no key; elements and timers of every key
read them. What an element sees is what the broadcast elements before it have written: neither input is held
back for the other, and which of two elements on different inputs is first is decided by when they arrive. Who
needs the rules before the first element keeps elements in keyed state until there are some.

Broadcast state is a cell, not a table: it is kept whole with every checkpoint, and all parts of an operator
that is divided by key have all of it. So it stays in memory, and should stay small: it grows until
`process_broadcast` removes what is done.

Where keys are divided among operators, each of them processes every broadcast element, so that all have the
same broadcast state. One of them speaks: what is emitted for the element, and that it has failed, comes from
that one. The others overhear it, and emit what `apply_to_keyed_state` makes of their own keys.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast, overload

from asyncstream.elements import Timestamps
from asyncstream.errors import CheckpointError, PipelineError, UserFunctionError, safe_repr
from asyncstream.joins.co_process import FunctionInput
from asyncstream.operators.base import Operator
from asyncstream.operators.emitting import Emitter
from asyncstream.operators.failures import OnError
from asyncstream.operators.keyed_context import KeyedContext
from asyncstream.operators.ports import MultiInput, Receive
from asyncstream.operators.process import KeyedFunction, KeyedFunctionOperator
from asyncstream.operators.process_spec import KeyedFunctionSpec
from asyncstream.operators.results import is_deferred, not_a_value
from asyncstream.operators.spec import KeyBy
from asyncstream.state import Cell, MapDescriptor, State, StateDescriptor
from asyncstream.state.keys import NoKey, check_map_key
from asyncstream.validation import instance, refuse

__all__ = (
    "BroadcastContext",
    "BroadcastSpec",
    "BroadcastState",
    "KeyedBroadcastOperator",
    "KeyedBroadcastProcessFunction",
)

T = TypeVar("T")
Rule = TypeVar("Rule")
Out = TypeVar("Out")
K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S", bound=State)

BROADCAST: Final = "broadcast"
"""The cell in which broadcast state is kept."""


_NO_KEY: Final = NoKey(
    "a broadcast element has no key, so no keyed state and no timers; "
    "use ctx.apply_to_keyed_state(descriptor, fn) for all keys that have some"
)


def _no_key(value: object) -> NoKey:
    return _NO_KEY


class BroadcastState(Generic[K, V]):
    """One map of the broadcast state: read by all, written by `process_broadcast` alone."""

    def __init__(self, maps: _Maps, name: str) -> None:
        self._maps = maps
        self._entries = cast(dict[K, V], maps.asked_for(name))

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    def get(self, key: K, default: V | None = None) -> V | None:
        """The value under `key`, or `default`."""
        return self._entries.get(key, default)

    def items(self) -> list[tuple[K, V]]:
        """A new list of (key, value), in the order of their first `put`."""
        return list(self._entries.items())

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._entries))

    def put(self, key: K, value: V) -> None:
        """
        Set the value under `key`.

        Raises:
            PipelineError: as `remove` and `clear` do, if no broadcast element is being processed.
            ValueError: if the key does not equal itself, such as NaN.
        """
        self._maps.check_writable()
        if key not in self._entries:
            check_map_key(key)
        self._entries[key] = value

    def remove(self, key: K) -> None:
        """Forget the value under `key`, if there is one."""
        self._maps.check_writable()
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Forget all entries."""
        self._maps.check_writable()
        self._entries.clear()


class _Maps:
    """All broadcast state of one operator; writable while a broadcast element is being processed."""

    def __init__(self) -> None:
        self.writable = False
        self._maps: dict[str, dict[Any, Any]] = {}
        self._asked: set[str] = set()

    def asked_for(self, name: str) -> dict[Any, Any]:
        self._asked.add(name)
        return self._maps.setdefault(name, {})

    def unasked(self) -> list[str]:
        """Those that have entries of an earlier run, and that nobody has asked for."""
        return [name for name, entries in self._maps.items() if entries and name not in self._asked]

    def check_writable(self) -> None:
        if not self.writable:
            raise PipelineError(
                "broadcast state is written by process_broadcast alone, so that it is the same for all keys"
            )

    def take(self) -> dict[str, Any]:
        return {name: [list(entry) for entry in entries.items()] for name, entries in self._maps.items()}

    def give(self, kept: Mapping[str, Any]) -> None:
        for entries in self._maps.values():
            entries.clear()
        for name, rows in kept.items():
            self._maps.setdefault(name, {}).update((key, value) for key, value in rows)


class BroadcastContext(KeyedContext):
    """
    What a `KeyedBroadcastProcessFunction` may ask for: all that a `KeyedContext` gives, and broadcast state.

    While a broadcast element is processed there is no key, and keyed state and timers are refused.
    """

    __slots__ = ("_maps", "_step", "_unsaid")

    _maps: _Maps
    _step: str
    _unsaid: tuple[int, int] | None
    """What has been emitted since is for another operator to say; None: for this one."""

    def broadcast_state(self, descriptor: MapDescriptor[K, V]) -> BroadcastState[K, V]:
        """The handle for a map of the broadcast state. Fetch it once, in `open`."""
        instance("broadcast_state", descriptor, MapDescriptor)
        if descriptor.ttl is not None:
            raise refuse("ttl of broadcast state", "none", descriptor.ttl, "remove entries instead")
        return BroadcastState(self._maps, descriptor.name)

    def apply_to_keyed_state(self, descriptor: StateDescriptor[S], fn: Callable[[Any, S], object]) -> None:
        """
        Call `fn(key, state)` for each key that has something in the state of this descriptor, in no order.

        Args:
            fn: may read, change and clear the state, which is that of `key` during the call. An error that it
                raises always fails the job, as one of `on_timer` does: other keys have been visited.

        Raises:
            PipelineError: if no broadcast element is being processed.
            UserFunctionError: if `fn` raised.
        """
        self._maps.check_writable()
        state = self._state.state(descriptor)
        unsaid, self._unsaid = self._unsaid, None
        if unsaid is not None:
            self._out.take_back(unsaid)
        before, key = self._state.key, None  # a key, if it is called by another `fn`
        try:
            for key in self._state.keys_of(descriptor):
                self._state.key = key
                if (result := fn(key, state)) is not None and is_deferred(result):
                    raise not_a_value([result], "await in an async_map before")
        except Exception as error:
            when = f"in apply_to_keyed_state on key {safe_repr(key)}"
            raise UserFunctionError(self._step, None, error, when=when) from error
        finally:
            self._state.key = before
            if unsaid is not None:
                self._unsaid = self._out.mark()


class KeyedBroadcastProcessFunction(KeyedFunction, Generic[T, Rule, Out]):
    """
    The user's code for a stream, one key at a time, and for one whose elements are for all keys.

    Override `process_element` and `process_broadcast`, and what is needed of the rest. See `KeyedFunction`
    for what holds of all such functions.
    """

    def open(self, ctx: BroadcastContext, /) -> None:
        """Called once: the place to fetch handles with `ctx.state` and `ctx.broadcast_state`."""

    def process_element(self, value: T, ctx: BroadcastContext, out: Emitter[Out], /) -> None:
        """Handle an element, with the broadcast state that stands when it comes; it may only be read."""
        raise TypeError(f"{type(self).__name__} does not override process_element")

    def process_broadcast(self, value: Rule, ctx: BroadcastContext, out: Emitter[Out], /) -> None:
        """
        Handle an element for all keys, and write the broadcast state.

        On Spark every key group does so for itself, so it must do the same in each: broadcast state, and what
        is emitted but for the calls of `apply_to_keyed_state`, must hang neither on what those have found nor
        on chance or a clock.
        """
        raise TypeError(f"{type(self).__name__} does not override process_broadcast")

    def on_timer(self, timestamp: int, ctx: BroadcastContext, out: Emitter[Out], /) -> None:
        """Handle a timer of `ctx.key`; see `KeyedFunction`."""


class _Overhearing(Operator):
    """Takes elements by the side of an input, which has all else."""

    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self.process_batch = receive  # type: ignore[method-assign]


class KeyedBroadcastOperator(MultiInput, KeyedFunctionOperator):
    """
    Runs a `KeyedBroadcastProcessFunction`: emits and completes as `KeyedProcessOperator` does.

    Snapshot holds: keyed state and timers, and broadcast state.
    """

    declares = KeyedBroadcastProcessFunction

    def __init__(
        self,
        key_by: KeyBy,
        function: KeyedBroadcastProcessFunction[Any, Any, Any],
        on_error: OnError = "fail",
    ) -> None:
        """`key_by` gives the key of an element of the keyed input."""
        KeyedFunctionOperator.__init__(self, function, on_error)
        self._maps = _Maps()
        self.tables.declare_cell(BROADCAST, Cell(self._maps.take, self._maps.give))
        self._process_broadcast = function.process_broadcast
        elements = FunctionInput(self, key_by, function.process_element)
        self.have_ports(elements, self._for_all_keys(self._process_broadcast), holds_back=True)

    def _for_all_keys(self, process: Callable[..., object]) -> Receive:
        """What has broadcast elements processed by this function, which may write broadcast state."""
        broadcast = partial(self.process_with, key_by=_no_key, process_element=process)

        def receive(values: Sequence[Any], timestamps: Timestamps) -> None:
            self._maps.writable = True
            try:
                broadcast(values, timestamps)
            finally:
                self._maps.writable = False

        return receive

    def unasked(self) -> tuple[str, ...]:
        return (*super().unasked(), *self._maps.unasked())

    def united(self, states: Sequence[Any]) -> Any:
        """
        The snapshot that has these parts; raises `CheckpointError` if they have not the same broadcast state.
        """
        whole = super().united(states)
        for state in states:
            _check_same(whole["cells"][BROADCAST], state["cells"][BROADCAST])
        return whole

    def overhearing(self, number: int) -> Operator:
        return _Overhearing(self._for_all_keys(self._overhear))

    def _overhear(self, value: Any, ctx: BroadcastContext, emit: Emitter[Any]) -> object:
        """Process a broadcast element for which another operator speaks."""
        ctx._unsaid = before = self._emitter.mark()
        try:
            result = self._process_broadcast(value, ctx, emit)
        except Exception as error:
            if not self._failures.bears(error):
                raise
            result, ctx._unsaid = None, before
        self._emitter.take_back(ctx._unsaid)
        ctx._unsaid = None
        return result

    def _new_context(self) -> BroadcastContext:
        ctx = BroadcastContext(self._emitter, self._state, self._timers, self.context.clock)
        ctx._maps, ctx._step, ctx._unsaid = self._maps, self.context.name, None
        return ctx


def _check_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    for name in {**one, **other}:
        rows, others = one.get(name, []), other.get(name, [])
        if pickle.dumps(rows) == pickle.dumps(others):  # of values that equal themselves alone, too
            continue
        with suppress(Exception):
            if rows == others:
                continue
        raise CheckpointError(
            f"broadcast state {name!r} should be the same for all keys, and is {safe_repr(rows, 100)} for "
            f"some and {safe_repr(others, 100)} for others, so process_broadcast hangs on chance, a clock or "
            "what keys have; mend it, and have it process elements that set all entries anew"
        )


@dataclass(frozen=True)
class BroadcastSpec(KeyedFunctionSpec):
    """
    Runs a function for each key of one stream, and for another whose elements are for all keys.

    Attributes:
        function: the user's.
        on_error: what becomes of an element on which it raises.
        key_by: gives the key of an element of the keyed input.
    """

    function: KeyedBroadcastProcessFunction[Any, Any, Any]
    key_by: KeyBy

    operator = KeyedBroadcastOperator
    overhears = True
    table_port = 1

    def build(self) -> KeyedBroadcastOperator:
        return KeyedBroadcastOperator(self.key_by, self.function, self.on_error)

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return (self.key_by, None)
