"""
What the state of a step consists of, as plain data, so that a program whose code has changed can tell
whether a state that was kept is its own.

A schema has parts, by what a change of each means:

* `form`: what the state hangs on as a whole, such as the windows that it is cut into. Under another form it
  is of no use.
* `parts`: what the state holds under names, such as aggregates, in the order in which it holds them. Parts
  may come, go and change places; a part that stays under its name must be the same.
* `settings`: what may change freely.

Functions cannot be compared: all are alike in a schema. Which fields the key is made of, or elements are
ranked by, is noted apart, as `fields`, if they were given by names: of two that are known they must be alike.
So is whether there are keys at all.

What the inputs of a step are called is noted, too, as `inputs`. They may have other names, but not change
places: what is kept of one would be taken for the other's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from enum import Enum
from hashlib import blake2b
from typing import Any

from asyncstream.errors import CheckpointError
from asyncstream.state.tables import Kept
from asyncstream.validation import named_fields

__all__ = ("Change", "Schema", "adapted", "attributes", "compare", "described", "exchanged", "shown")

log = logging.getLogger("asyncstream.state")

FUNCTION = "a function"
"""How every function is described."""

DEPTH = 6
"""How deep objects in objects are looked into."""

MANY = 100
"""Of a collection with more than this many items only the type is noted."""

Convert = Callable[[Any, "Schema"], Any]
"""Makes of a snapshot that was taken under the given schema one of the present one."""


@dataclass(frozen=True)
class Schema:
    """
    What the state of one step consists of; see the module.

    Attributes:
        form: must be the same; plain JSON, as all of these are.
        parts: by name; may come and go.
        settings: may change.
        fields: which of an element's are read, by what for; compared as far as both sides know of them.
        inputs: of a step with several, by which of them, the names of where its elements come from.
        convert: called when anything but the form has changed; None: the state can stay as it is.
    """

    form: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    inputs: Mapping[str, Sequence[str]] = field(default_factory=dict, kw_only=True)
    convert: Convert | None = field(default=None, compare=False, repr=False)

    def plain(self) -> dict[str, Any]:
        """The schema as JSON keeps it."""
        known = {"fields": dict(self.fields)} if self.fields else {}
        if self.inputs:
            known["inputs"] = {which: [*names] for which, names in self.inputs.items()}
        return {"form": dict(self.form), "parts": dict(self.parts), "settings": dict(self.settings), **known}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Schema:
        """The schema that `plain` gave."""
        known = {name: plain.get(name, {}) for name in ("fields", "inputs")}
        return cls(plain["form"], plain["parts"], plain["settings"], **known)

    def reading(self, readers: Mapping[str, Callable[[Any], Any] | None]) -> Schema:
        """The same, with the fields that these functions read, by what for, if they were given by names."""
        found = {
            what: named for what, fn in readers.items() if fn and (named := named_fields(fn)) is not None
        }
        return replace(self, fields={**self.fields, **found}) if found else self

    def grouped(self, by_key: bool) -> Schema:
        """The same, with whether elements are kept apart by keys; compared as `fields` are."""
        grouping = "by key" if by_key else "all elements together"
        return replace(self, fields={**self.fields, "grouping": grouping})

    def joining(self, known_as: Sequence[Sequence[str]]) -> Schema:
        """The same, with the names of where the elements of each input come from; none: they have none."""
        if len(known_as) < 2 or not any(known_as):
            return self
        # more than two by the number that a function is told
        which = [f"input {number}" for number in range(len(known_as))]
        which = which if len(known_as) > 2 else ["left input", "right input"]
        return replace(self, inputs=dict(zip(which, known_as, strict=True)))

    def fingerprint(self) -> str:
        """Equal for two schemas exactly if the state of one is, as it stands, a state of the other."""
        form = {name: part for name, part in self.form.items() if part is not None}
        text = json.dumps([_sorted(form), [[name, _sorted(part)] for name, part in self.parts.items()]])
        return blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Change:
    """
    How one schema differs from an earlier one.

    Attributes:
        conflicts: why the state cannot be used, in words; empty if it can.
        added: parts that are new; they start from nothing.
        removed: parts that are gone; what they held is lost.
        reordered: the parts that stay come in another order.
        settings: which settings have changed, in words.
    """

    conflicts: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    reordered: bool = False
    settings: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.conflicts or self.added or self.removed or self.reordered or self.settings)

    def __str__(self) -> str:
        words = list(self.conflicts)
        if self.added:
            are = "is new and starts" if len(self.added) == 1 else "are new and start"
            words.append(f"{_named(self.added)} {are} from nothing")
        if self.removed:
            words.append(f"what {_named(self.removed)} held is gone")
        if self.reordered:
            words.append("what it holds has another order")
        return "; ".join([*words, *self.settings])


def compare(was: Schema, now: Schema) -> Change:
    """
    How `now` differs from `was`.

    Args:
        was: what the checkpoint holds.
        now: what the step remembers as it is now.
    """
    conflicts = _differences(was.form, now.form)
    for before, after in ((was.parts, now.parts), (was.fields, now.fields)):
        conflicts += _differences(
            {name: part for name, part in before.items() if name in after},
            {name: part for name, part in after.items() if name in before},
        )
    conflicts += exchanged(was.inputs, now.inputs)
    stay = [name for name in was.parts if name in now.parts]
    return Change(
        tuple(conflicts),
        tuple(name for name in now.parts if name not in was.parts),
        tuple(name for name in was.parts if name not in now.parts),
        stay != [name for name in now.parts if name in was.parts],
        tuple(_differences(was.settings, now.settings)),
    )


def adapted(step: str, state: Any, was: Mapping[str, Any] | None, now: Schema | None) -> Any:
    """
    What `step`, as it is now, can restore of a state that was kept; says in the log what has changed.

    Args:
        step: its name.
        state: a snapshot, or the `Kept` of one.
        was: the schema under which it was taken, as `Schema.plain` gave it; None: unknown, not compared.
        now: the schema of the step; None: it has none.

    Raises:
        CheckpointError: if the state is not the step's own.
    """
    if was is None or now is None:
        return state
    before = Schema.of(was)
    change = compare(before, now)
    if change.conflicts:
        raise CheckpointError(f"step {step!r} has changed and cannot use its old state: {change}")
    if not change:
        return state
    log.log(
        logging.WARNING if change.added or change.removed or change.reordered else logging.INFO,
        "step %r has changed since its state was kept: %s",
        step,
        change,
    )
    if now.convert is None:
        return state
    return now.convert(state.snapshot() if isinstance(state, Kept) else state, before)


def described(value: object, depth: int = DEPTH) -> Any:
    """
    A setting as plain JSON: numbers, texts and lists as they are, functions as "a function", and any other
    object as its type with its attributes.

    An object may have a method `state_schema` that says it better.

    Args:
        value: the setting.
        depth: how many levels of attributes are looked at.
    """
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, timedelta):
        return value / timedelta(milliseconds=1)
    if not depth or (isinstance(value, Sized) and len(value) > MANY):
        return type(value).__name__
    if isinstance(value, Mapping):
        return {str(name): described(part, depth - 1) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [described(part, depth - 1) for part in value]
    if isinstance(value, set | frozenset):
        return sorted((described(part, depth - 1) for part in value), key=repr)
    own = None if isinstance(value, type) else getattr(value, "state_schema", None)
    if own is not None:
        return own()
    return FUNCTION if callable(value) else attributes(value, depth)


def attributes(value: object, depth: int = DEPTH, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """
    An object as its type with its attributes, `without` those that follow from others.

    Private attributes count only if they are plain and the class is the user's: nothing else tells two of
    those apart.
    """
    kind = type(value)
    is_ours = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
    found: dict[str, Any] = {"type": kind.__name__ if is_ours else f"{kind.__qualname__} of the program"}
    held = getattr(value, "__dict__", {})
    names = [one.name for one in fields(value)] if is_dataclass(value) else sorted(held)
    for name in names:
        part = getattr(value, name, None)  # of a dataclass, what is not filled yet
        is_plain = part is None or isinstance(part, bool | int | float | str)
        if name not in without and (not name.startswith("_") or (is_plain and not is_ours)):
            found[name] = described(part, depth - 1)
    return found


def _differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} was {shown(was.get(name))} and is {shown(now.get(name))}"
        for name in {**was, **now}
        if json.dumps(was.get(name), sort_keys=True) != json.dumps(now.get(name), sort_keys=True)
    ]


def exchanged(was: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]]) -> list[str]:
    """That inputs have changed places, in words: other names alone may be the same inputs."""
    if was.keys() != now.keys():
        return []
    before, after = ({which: tuple(names) for which, names in of.items()} for of in (was, now))
    moved = [
        f"{which} was {_named(before[which])} and is {_named(name)}"
        for which, name in after.items()
        if name != before[which] and name in before.values() and before[which] in after.values()
    ]
    return [f"its inputs have changed places: {', '.join(moved)}"] if moved else []


def shown(value: Any) -> str:
    """What `described` gave in words: `{"type": "Sum", "of": "x"}` as `Sum(of='x')`."""
    if isinstance(value, Mapping):
        inside = [f"{name}={shown(part)}" for name, part in value.items() if name != "type"]
        if "type" in value:
            return f"{value['type']}({', '.join(inside)})"
        return "{" + ", ".join(inside) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    return value if value == FUNCTION else "nothing" if value is None else repr(value)


def _sorted(value: Any) -> Any:
    """Plain JSON as it compares: as it comes back from JSON, and names in no order."""
    return json.loads(json.dumps(value, sort_keys=True))


def _named(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))
