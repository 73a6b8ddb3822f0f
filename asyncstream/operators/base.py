"""
The operator contract.

An operator is a synchronous state machine. Its driver pushes into it, and it pushes what results into
`self.out` before it returns: there is no queue, no task and no `await` between two operators of a chain. One
that a single call may give much to do does that in slices (`OperatorContext.work_off`), and the driver sees
to it that nothing else happens to it before the last one.

It is driven by these and nothing else:

* `process_batch(values, timestamps)` / `process(value, timestamp)`: elements arrive;
* `advance_watermark(timestamp)`: event time advances (watermarks of one operator never decrease);
* `set_idle(idle)`: the input stops or starts to count for the watermark downstream;
* `advance_clock(now_ms)`: processing time advances (only after `context.wake_at` asked for it);
* `end_input()`: nothing follows. A `Watermark(MAX_TIMESTAMP)` came before it if the input ended by itself.

`open` comes before all of them, `close` after; `restore` between `open` and the first element, then
`restore_watermark` if there was a watermark. What an
operator pushes downstream while it handles one of these calls comes before the call's own effect is
passed on, so a watermark never overtakes the results that it caused.

Operators that have more outputs than one push elements into `side[tag]`; control elements go to all outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import repeat
from typing import Any, ClassVar, Final, NoReturn

from asyncstream.clock import Clock, SystemClock
from asyncstream.elements import MIN_TIMESTAMP, Control, IdleStatus, Mark, Timestamps, Watermark
from asyncstream.errors import InternalError, StateError, UserFunctionError, encodable, safe_repr
from asyncstream.metrics import Timings
from asyncstream.operators.call_log import CallLog
from asyncstream.operators.journey import Journeys
from asyncstream.operators.results import is_of_key
from asyncstream.operators.whereabouts import Failure, TimeReached, Whereabouts
from asyncstream.state.capture import Frozen, freeze
from asyncstream.state.keyed import unasked
from asyncstream.state.rows import run_through
from asyncstream.state.snapshots import divide_snapshot, is_snapshot, unite_snapshots
from asyncstream.state.tables import Tables
from asyncstream.state.timer_queue import Timer

__all__ = ("DISCARD", "Discard", "Fanout", "Operator", "OperatorContext", "pairs")


_RAISED_IN: Final = "raised in step"


def _raise(error: BaseException) -> None:
    raise error


@dataclass(slots=True)
class OperatorContext:
    """
    What a driver lends an operator when it opens it.

    Attributes:
        name: the step's name, unique in its pipeline.
        clock: processing time.
        wake_at: asks the driver to call `advance_clock` once its clock has reached this many
            milliseconds since the epoch. Asking again replaces an earlier request only if it is sooner.
        fail: reports an error that no caller is there to catch (from a task or a callback).
        is_held: whether those who feed the operator may not push now (backpressure): their silence then
            says nothing about them.
        held_ms: for how many milliseconds that was so up to now, in all; they are no part of a silence.
        has_room: whether the operator may emit what the clock makes it emit; what it emits for an element
            always may come, and so may a slice of what it emits for a watermark. Without room it keeps what
            is due.
        wake_with_room: asks the driver to call `advance_clock` once there is room.
        work_off: has work done that comes in slices, of an operator that `works_off`: some of it later,
            perhaps, and then nothing else reaches the operator before that, nor are its tables cut.
        patience: seconds that the user's code gets to end once it is cancelled or closed.
        keeps_checkpoints: what the operator remembers is kept while it runs.
        journeys: tells of elements that are followed.
        pipeline: the pipeline's name.
        tracks: it, or a step behind it, asks where elements come from.
        call_log: where its finished calls are written down; None: nowhere.
        checkpoint: asks for a checkpoint of all that is so now, and has the function that it is given told
            whether that is safe; None: none are kept.
        may_end: what asks the process to end does end it, for it is the user's own; otherwise it is an error
            of the step like any other.
    """

    name: str = "operator"
    _: KW_ONLY
    clock: Clock = field(default_factory=SystemClock)
    wake_at: Callable[[int], None] = lambda now_ms: None
    fail: Callable[[BaseException], None] = _raise
    is_held: Callable[[], bool] = lambda: False
    held_ms: Callable[[], int] = lambda: 0
    has_room: Callable[[], bool] = lambda: True
    wake_with_room: Callable[[], None] = lambda: None
    work_off: Callable[[Iterator[None]], None] = run_through
    patience: float = 10.0
    keeps_checkpoints: bool = False
    journeys: Journeys = field(default_factory=Journeys)
    pipeline: str = ""
    tracks: bool = False
    call_log: CallLog | None = None
    checkpoint: Callable[[Callable[[bool], None]], None] | None = None
    may_end: bool = True

    def open_ms(self) -> int:
        """Processing time without that in which those who feed the step were held: nothing could be heard."""
        return self.clock.now_ms() - self.held_ms()


class Operator:
    """
    Base of all operators: passes everything on unchanged.

    Attributes:
        out: where the main output goes.
        side: where side outputs go, by tag; a tag without a reader is absent.
        tables: all that it remembers; declared at the latest in `open`.
        called: the async function that it calls; None: none.
        recent_failures: the last elements that a function failed on and the job did not, the newest last.
        keyed_by: what gives the keys of its elements, where errors are to say so.
        follows_splits: it is an `AssignEventTime`, and may be told of the splits of the source before it.
        works_off: one watermark may give it much to do: it does that by `OperatorContext.work_off`.
    """

    called: object = None
    keyed_by: Collection[Callable[[Any], Any]] = ()
    follows_splits: ClassVar[bool] = False
    works_off: ClassVar[bool] = False
    recent_failures: Sequence[Failure] = ()

    def __init__(self) -> None:
        self.out: Operator = DISCARD
        self.side: dict[str, Operator] = {}
        self.context = OperatorContext()
        self.tables = Tables()

    def open(self, context: OperatorContext) -> None:
        """Called once, before anything else. Operators downstream are open already."""
        self.context = context

    def port(self, number: int) -> Operator:
        """What takes the elements of input `number`, counted from 0; of a single one, the operator itself."""
        return self

    def enter_by(self, entrance: Operator) -> None:
        """What several inputs come to together reaches the operator by `entrance`, as each of them does."""

    def overhearing(self, number: int) -> Operator:
        """
        What takes the elements of input `number` for which another operator speaks that the step has.

        They change what this one knows as they would by the input itself. Of what comes of them only that
        leaves it which belongs to a key. Control elements come by the input.
        """
        return self.port(number)

    def process(self, value: Any, timestamp: int | None) -> None:
        """Accept one element; `timestamp` in milliseconds since the epoch, or None."""
        self.process_batch([value], None if timestamp is None else [timestamp])

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        """Accept elements in order. The lists are read-only: they may be shared with other operators."""
        self.out.process_batch(values, timestamps)

    def advance_watermark(self, timestamp: int) -> None:
        """No element with a timestamp <= this one follows."""
        for output in self.outputs():
            output.advance_watermark(timestamp)

    def restore_watermark(self, timestamp: int) -> None:
        """
        Event time had come this far when the snapshot was taken that was restored.

        It is known again what is late. Nothing happens: a timer that was due then waited for the next
        watermark, and still does. Operators that remember their own watermark do not pass this on.
        """
        for output in self.outputs():
            output.restore_watermark(timestamp)

    def set_idle(self, idle: bool) -> None:
        """While idle, this input does not hold back the watermark downstream."""
        for output in self.outputs():
            output.set_idle(idle)

    def pass_mark(self, mark: Mark) -> None:
        """What came before this has been accepted; pass it on behind what comes of that."""
        outputs = self.outputs()
        mark.divide(len(outputs))
        for output in outputs:
            output.pass_mark(mark)

    def at_once(self) -> Sequence[Operator]:
        """
        Who gets what is made of a batch before the push of that batch returns, and nothing else meanwhile.

        None, unless what is made of each element follows from that element alone.
        """
        return ()

    def advance_clock(self, now_ms: int) -> None:
        """Processing time has reached `now_ms`. Not passed on: the driver tells each operator that asked."""

    def end_input(self) -> None:
        """Nothing follows."""
        for output in self.outputs():
            output.end_input()

    def snapshot(self) -> Any:
        """
        What `restore` needs to go on from here, or None for an operator that remembers nothing.

        Free of side effects, and made of values that the codec keeps. It must not share mutable parts
        with the running operator.
        """
        return self.tables.snapshot() if self.tables else None

    def capture(self) -> Frozen[Any]:
        """
        What `snapshot` would give now, held fast to be looked at later.

        Nothing else runs meanwhile, so it must be quick. Override it where `snapshot` takes long.
        """
        return freeze(self.snapshot())

    def restore(self, state: Any) -> None:
        """Take up the state that `snapshot` gave."""
        self.tables.restore(self.upgraded(state))

    def unasked(self) -> tuple[str, ...]:
        """State of a function of the user's that was restored, and that it has not asked for in `open`."""
        return unasked(self.tables)

    def upgraded(self, state: Any) -> Any:
        """A snapshot in the form of today, of one that an earlier version may have taken."""
        return state

    def divided(
        self, state: Any, share_of: Callable[[Any], int], shares: Collection[int]
    ) -> dict[int, Any] | None:
        """A snapshot in parts, each with some of the keys; None if this is not about keys."""
        state = self.upgraded(state)
        return divide_snapshot(state, share_of, shares) if is_snapshot(state) else None

    def united(self, states: Sequence[Any]) -> Any:
        """
        The snapshot that has these parts, of which there is at least one; None if this is not about keys.
        """
        states = [self.upgraded(state) for state in states]
        return unite_snapshots(states) if is_snapshot(states[0]) else None

    def due_ms(self) -> int | None:
        """The event time at which there is something to do even if no element comes; None: there is none."""
        return None

    def resume(self) -> None:
        """
        Called once when this and all operators downstream are restored.

        An operator whose output has a watermark of its own tells those downstream of it, so that they know
        what is late.
        """
        reached = self.time_reached()
        if reached is not None and reached.watermark > MIN_TIMESTAMP:
            Operator.restore_watermark(self, reached.watermark)

    def close(self) -> None:
        """Called once, at the end, whatever happened before."""

    def metrics(self) -> dict[str, int]:
        """Counters and gauges by name, as they stand now."""
        return {}

    def timings(self) -> dict[str, Timings]:
        """How long what it does takes, by outcome: that of its calls, if it makes any."""
        return {}

    def time_reached(self) -> TimeReached | None:
        """How far event time has come behind it; None: as far as it has come where it reads."""
        return None

    def whereabouts(self) -> Whereabouts | None:
        """Where the elements are that it has accepted; None: it passes them on at once or keeps them."""
        return None

    def outputs(self) -> tuple[Operator, ...]:
        """The main output and every side output that is read: all of them get the control elements."""
        return (self.out, *self.side.values())

    def pass_on(self, control: Control) -> None:
        """Give every output a control element that was held in a queue."""
        if isinstance(control, Mark):
            Operator.pass_mark(self, control)
            return
        for output in self.outputs():
            if isinstance(control, Watermark):
                output.advance_watermark(control.timestamp)
            elif isinstance(control, IdleStatus):
                output.set_idle(control.idle)
            else:
                output.end_input()

    def side_output(self, tag: str) -> Operator:
        """Where elements for `tag` go; nowhere if they have no reader."""
        return self.side.get(tag, DISCARD)

    def blame(self, value: object, error: BaseException) -> BaseException:
        """
        The error to raise when a user's function failed on `value`, which is its cause.

        What asks the process to end stays what it is where it may, with a note that names the step and the
        element.
        """
        if isinstance(error, UserFunctionError | InternalError | StateError):
            return error
        when = value.told() if isinstance(value, Timer) else f"on element {safe_repr(value)}"
        if is_of_key(error, self.keyed_by):
            when = f"in its key function, {when}"
        if isinstance(error, KeyboardInterrupt | SystemExit) and self.context.may_end:
            if not any(note.startswith(_RAISED_IN) for note in getattr(error, "__notes__", ())):
                error.add_note(encodable(f"{_RAISED_IN} {self.context.name!r} {when}"))
            return error
        failure = UserFunctionError(self.context.name, value, error, when=when)
        failure.__cause__ = error
        return failure

    def fail_on(self, value: object, error: BaseException) -> NoReturn:
        """
        Raise what `blame` gives. Not `from error` where it was raised: that would be an error's own cause if
        it stays what it is, in place of what caused it.
        """
        raise self.blame(value, error)


class Discard(Operator):
    """The end of a branch without a reader."""

    def __init__(self) -> None:
        # no super().__init__(): out would refer to the instance being made
        self.side = {}
        self.context = OperatorContext()
        self.tables = Tables()

    def outputs(self) -> tuple[Operator, ...]:
        return ()

    def process(self, value: Any, timestamp: int | None) -> None:
        pass

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        pass

    def pass_mark(self, mark: Mark) -> None:
        mark.arrive()


DISCARD = Discard()


class Fanout(Operator):
    """Gives several readers of one stream the same elements, in the order in which they were connected."""

    def __init__(self, readers: Sequence[Operator]) -> None:
        super().__init__()
        self.readers = tuple(readers)

    def at_once(self) -> Sequence[Operator]:
        return self.readers

    def outputs(self) -> tuple[Operator, ...]:
        return self.readers

    def process(self, value: Any, timestamp: int | None) -> None:
        for reader in self.readers:
            reader.process(value, timestamp)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        for reader in self.readers:
            reader.process_batch(values, timestamps)


def pairs(values: Sequence[Any], timestamps: Timestamps) -> Iterator[tuple[Any, int | None]]:
    """(value, timestamp) for each element of a batch."""
    return zip(values, repeat(None) if timestamps is None else timestamps, strict=False)
