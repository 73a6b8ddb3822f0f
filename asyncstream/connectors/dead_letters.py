"""
Elements whose call gave no result, kept as plain records, and fed back in another day.

    enriched.failed.map(to_dead_letter).to(JsonLinesSink("failed.jsonl", existing="append"))
    ...
    again = pipeline.source(JsonLinesSource("failed.jsonl")).map(from_dead_letter)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncstream.errors import describe_error
from asyncstream.operators.functions import FailedCall

__all__ = ("from_dead_letter", "to_dead_letter")


def to_dead_letter(call: FailedCall) -> dict[str, Any]:
    """
    A record that any sink can take, and a person can read.

    Its fields are those of a `FailedCall`, with `error` as text, and `causes`, the errors behind it.
    """
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
    }


def from_dead_letter(letter: Mapping[str, Any]) -> Any:
    """
    The element that a dead letter is about.

    Raises:
        TypeError: if `letter` is none.
    """
    if not isinstance(letter, Mapping) or not {"value", "error", "attempts"} <= letter.keys():
        raise TypeError("expected a dead letter, an object with value, error and attempts")
    return letter["value"]
