"""
What is asked of the enriched flights: windows that correct themselves, sessions, timers.

- `hourly_delays`: departures of each airline by the hour, soon, and corrected by flights reported later;
- `rotations`: the legs that a plane flies out of New York one after the other, and how far they went;
- `Silences`: planes that have not been seen for days, and when they came back.

`analyse` puts the three behind a stream and collects what they find.
"""

from __future__ import annotations

from datetime import timedelta
from operator import itemgetter
from typing import NamedTuple

from asyncstream import (
    BoundedOutOfOrderness,
    Emitter,
    KeyedContext,
    KeyedProcessFunction,
    MapDescriptor,
    Stream,
    ValueDescriptor,
)
from asyncstream.pipeline import WindowResults
from asyncstream.windowing import Count, Max, Min, SessionWindows, Sum, TumblingWindows, WindowResult
from examples.flights.data import Row, departure_ms

__all__ = ("Findings", "Silence", "Silences", "analyse", "hourly_delays", "rotations")

HOUR = timedelta(hours=1)

SOON = timedelta(hours=3)
"""Most flights are shorter: after this time the figures of an hour are told."""

LATENESS = timedelta(hours=3)
"""For this long after that they are corrected; of a month's flights about a hundred come later still."""

REST = timedelta(hours=8)
"""A plane that does not leave New York for longer than this has ended its rotation."""

PATIENCE = timedelta(days=3)
"""A plane that does not leave New York for longer than this is missed."""


def hourly_delays(flights: Stream[Row]) -> WindowResults[WindowResult]:
    """
    Departures of each carrier and hour; `late` are the flights that come after the last correction.

    Flights have been given their event time before, but with watermarks that wait for the longest flight.
    These do not: an hour is told when most of its flights have landed, and again with each that lands later.
    """
    return (
        flights.event_time(departure_ms, BoundedOutOfOrderness(SOON, every=timedelta(minutes=1)), name="soon")
        .key_by(itemgetter("carrier"))
        .window(TumblingWindows(HOUR))
        .allowed_lateness(LATENESS)
        .aggregate(
            scheduled=Count(),
            departed=Count("dep_delay"),  # which a cancelled flight does not have
            delay_min=Sum("dep_delay"),
            worst_min=Max("dep_delay"),
            name="hourly delays",
        )
    )


def rotations(departures: Stream[Row]) -> WindowResults[WindowResult]:
    """Sessions of each plane: departures no more than `REST` apart."""
    return (
        departures.key_by(itemgetter("tailnum"))
        .window(SessionWindows(REST))
        .aggregate(
            legs=Count(),
            miles=Sum("distance"),
            seats=Sum(lambda flight: flight["plane"] and flight["plane"]["seats"]),
            first_ms=Min("departed_ms"),
            last_ms=Max("departed_ms"),
            name="rotations",
        )
    )


class Silence(NamedTuple):
    """
    A plane that is not seen for longer than usual.

    Attributes:
        tailnum: which plane.
        since_ms: its last departure before.
        until_ms: its next departure; None: it is still missed.
    """

    tailnum: str
    since_ms: int
    until_ms: int | None = None


class Silences(KeyedProcessFunction[Row, Silence]):
    """
    Says that a plane is missed, once that is certain, and again when it is back.

    Departures are reported out of order, so each waits for a timer at its own time: timers fire in order
    of event time, when nothing earlier can come. Each departure sets an alarm besides, which is of no
    importance if there was another departure since.

    Args:
        patience: how long a plane may not be seen.
    """

    def __init__(self, patience: timedelta) -> None:
        self._patience_ms = patience // timedelta(milliseconds=1)

    def open(self, ctx: KeyedContext) -> None:
        self._waiting = ctx.state(MapDescriptor[int, bool]("waiting"))
        self._last = ctx.state(ValueDescriptor[int]("last"))

    def process_element(self, flight: Row, ctx: KeyedContext, out: Emitter[Silence]) -> None:
        departed_ms = flight["departed_ms"]
        if departed_ms <= ctx.watermark:
            ctx.side("late", flight)
        else:
            self._waiting.put(departed_ms, True)
            ctx.register_event_timer(departed_ms)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Silence]) -> None:
        last_ms = self._last.get()
        silent_ms = 0 if last_ms is None else timestamp - last_ms
        if timestamp in self._waiting:
            if last_ms is not None and silent_ms > self._patience_ms:
                out(Silence(ctx.key, last_ms, timestamp))
            self._waiting.remove(timestamp)
            self._last.set(timestamp)
            # never deleted: a departure may be waiting for the same millisecond, which is the same timer
            ctx.register_event_timer(timestamp + self._patience_ms)
        elif last_ms is not None and silent_ms == self._patience_ms:
            out(Silence(ctx.key, last_ms))


class Findings:
    """
    What has been found, filled while the pipeline runs.

    Attributes:
        hours: the figures of `hourly_delays` by carrier and start of the hour: the last that were told.
        corrections: how often an hour was told again.
        late: flights that came after the last correction of their hour, and are in none.
        rotations: of planes, in no order.
        silences: until when, by plane and since when.
    """

    def __init__(self) -> None:
        self.hours: dict[tuple[str, int], Row] = {}
        self.corrections = 0
        self.late: list[Row] = []
        self.rotations: list[WindowResult] = []
        self.silences: dict[tuple[str, int], int | None] = {}

    def take_hour(self, result: WindowResult) -> None:
        hour = result.key, result.start_ms
        self.corrections += hour in self.hours
        self.hours[hour] = result.value

    def take_silence(self, silence: Silence) -> None:
        self.silences[silence.tailnum, silence.since_ms] = silence.until_ms


def analyse(flights: Stream[Row]) -> Findings:
    """Add the analysis behind flights as `enrichment.enriched_flights` gives them."""
    found = Findings()
    hours = hourly_delays(flights)
    hours.to(found.take_hour, name="hours")
    hours.late.to(found.late, name="late")
    departures = flights.filter(lambda flight: flight["departed_ms"] is not None, name="departures")
    rotations(departures).to(found.rotations, name="planes")
    silences = departures.key_by(itemgetter("tailnum")).process(Silences(PATIENCE), name="silences")
    silences.to(found.take_silence, name="missed")
    return found
