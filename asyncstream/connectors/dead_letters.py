"""
Elements whose call gave no result, kept as plain records, and fed back in another day.

    enriched.failed.map(to_dead_letter).to(JsonLinesSink("failed.jsonl", existing="append"))
    ...
    again = pipeline.source(JsonLinesSource("failed.jsonl")).map(from_dead_letter)

Where calls have effects, `pipeline.source(DeadLetterSource(JsonLinesSource("failed.jsonl")))` feeds them back
such that a call has the idempotency key that it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.connectors.json_values import loads
from asyncstream.connectors.messages import RejectedMessage
from asyncstream.errors import describe_error
from asyncstream.operators.functions import FailedCall
from asyncstream.operators.origins import Origin
from asyncstream.validation import instance, refuse

__all__ = ("DeadLetterSource", "from_dead_letter", "to_dead_letter")


def to_dead_letter(call: FailedCall) -> dict[str, Any]:
    """
    A record that any sink can take, and a person can read.

    Its fields are those of a `FailedCall`, with `error` as text, and `causes`, the errors behind it; `origin`
    only if the step keeps track of that, as JSON: no column has both texts and numbers.

    Args:
        call: an element of `.failed` or `.timed_out`.
    """
    if not isinstance(call, FailedCall):
        raise refuse("call", "a FailedCall", call, "put it behind .failed or .timed_out")
    causes: list[str] = []
    cause = call.error.__cause__
    while cause is not None and len(causes) < 10:  # of errors that cause each other, enough is enough
        causes.append(describe_error(cause))
        cause = cause.__cause__
    return {
        "value": call.value,
        "error": describe_error(call.error),
        "causes": causes,
        "attempts": call.attempts,
        "timestamp": call.timestamp,
        "first_ms": call.first_ms,
        "last_ms": call.last_ms,
        **({} if call.origin is None else {"origin": orjson.dumps(call.origin).decode()}),
    }


def from_dead_letter(letter: Mapping[str, Any]) -> Any:
    """
    The element that a dead letter is about, as it came back: of CSV and SQLite, lists and objects as JSON.

    Args:
        letter: what `to_dead_letter` has made, as it came back from a file or a table.

    Raises:
        TypeError: if `letter` is none.
    """
    if not isinstance(letter, Mapping) or not {"value", "error", "attempts"} <= letter.keys():
        raise TypeError("expected a dead letter, an object with value, error and attempts")
    return letter["value"]


def _origin_of(letter: Mapping[str, Any]) -> Origin:
    """That of a letter; empty if it has none. Raises `TypeError` if it is something else."""
    origin = letter.get("origin") or ()  # of CSV, "" is none
    if isinstance(origin, str):
        with suppress(ValueError):
            origin = loads(origin)
    if not isinstance(origin, list | tuple):
        raise TypeError("expected a dead letter whose origin is a list, or one as JSON")
    return tuple(origin)


class DeadLetterSource(Source[Any]):
    """
    Reads dead letters, and gives the elements that they are about: each with its origin, so that a step of
    the same name gives its call the same idempotency key as the call that failed. Elements are as they came
    back: lists and objects, from CSV and SQLite, as JSON, which a `map` reads.

    It stands where the source of the letters stands, and goes on from there. Of one that has splits they are
    read as one stream; a letter without an origin, of a step that did not keep track of that, may have
    another key after a crash then, or that of another such letter.

    What is no letter goes to `rejected`, as a `RejectedMessage`, where the source of the letters puts aside
    what it cannot read; otherwise it is a `SourceError`.

    Attributes:
        letters: the source that it was given.

    Args:
        letters: a source of what `to_dead_letter` made, e.g. `JsonLinesSource("failed.jsonl")`.
    """

    def __init__(self, letters: Source[Mapping[str, Any]]) -> None:
        instance("letters", letters, Source, advice='e.g. JsonLinesSource("failed.jsonl")')
        self.letters = letters
        self.rejects = letters.rejects
        self.hands_over = letters.hands_over
        self.needs_writer = letters.needs_writer

    def _join(self) -> None:
        """The source of the letters knows the job as well."""
        self.letters.writer, self.letters.checkpoint_soon = self.writer, self.checkpoint_soon

    async def open(self) -> None:
        self._join()
        await self.letters.open()

    async def read(self) -> SourceBatch[Any] | None:
        batch = await self.letters.read()
        if batch is None:
            return None
        values: list[Any] = []
        places: list[int] = []  # in the batch, of those that are letters
        rejected = list(batch.rejected)
        origins: dict[int, Origin] = {}
        for place, letter in enumerate(batch.values):
            try:
                value, origin = from_dead_letter(letter), _origin_of(letter)
                if origin:
                    origins[len(values)] = origin
                values.append(value)
                places.append(place)
            except TypeError as error:
                malformed = RejectedMessage(repr(self.letters), "", letter, str(error))
                if not self.rejects:
                    raise malformed.error() from error
                rejected.append(malformed)
        return batch._replace(
            values=values,
            timestamps=batch.timestamps and [batch.timestamps[place] for place in places],
            rejected=rejected,
            journeys={
                number: batch.journeys[place]
                for number, place in enumerate(places)
                if place in batch.journeys
            },
            origins=origins,
            split=None,
        )

    def end(self) -> bool:
        return self.letters.end()

    def suspend(self) -> None:
        self.letters.suspend()

    def position(self) -> Any:
        return self.letters.position()

    def progress(self) -> float | None:
        return self.letters.progress()

    async def can_seek(self, position: Any) -> None:
        self._join()
        await self.letters.can_seek(position)

    async def seek(self, position: Any) -> None:
        await self.letters.seek(position)
        self.started_over = self.letters.started_over

    def unread(self) -> int:
        return self.letters.unread()

    def acknowledges(self) -> bool:
        return self.letters.acknowledges()

    async def acknowledge(self, position: Any) -> None:
        await self.letters.acknowledge(position)

    async def forget(self, position: Any) -> None:
        await self.letters.forget(position)

    def is_replayable(self) -> bool:
        return self.letters.is_replayable()

    def is_reopenable(self) -> bool:
        return self.letters.is_reopenable()

    async def close(self) -> None:
        await self.letters.close()
