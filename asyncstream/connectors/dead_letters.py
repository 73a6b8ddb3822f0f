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
from typing import Any

from asyncstream.connectors.base import Source, SourceBatch
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
    only if the step keeps track of that.

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
        **({} if call.origin is None else {"origin": list(call.origin)}),
    }


def from_dead_letter(letter: Mapping[str, Any]) -> Any:
    """
    The element that a dead letter is about.

    Args:
        letter: what `to_dead_letter` has made, as it came back from a file or a table.

    Raises:
        TypeError: if `letter` is none.
    """
    if not isinstance(letter, Mapping) or not {"value", "error", "attempts"} <= letter.keys():
        raise TypeError("expected a dead letter, an object with value, error and attempts")
    return letter["value"]


class DeadLetterSource(Source[Any]):
    """
    Reads dead letters, and gives the elements that they are about: each with its origin, so that a step of
    the same name gives its call the same idempotency key as the call that failed.

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
        for place, letter in enumerate(batch.values):
            try:
                values.append(from_dead_letter(letter))
                places.append(place)
            except TypeError as error:
                malformed = RejectedMessage(repr(self.letters), "", letter, str(error))
                if not self.rejects:
                    raise malformed.error() from error
                rejected.append(malformed)
        origins: dict[int, Origin] = {}
        for number, place in enumerate(places):
            origin = batch.values[place].get("origin")
            if isinstance(origin, list | tuple) and origin:
                origins[number] = tuple(origin)
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
