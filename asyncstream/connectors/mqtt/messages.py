"""
What a message of MQTT is in a pipeline.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

__all__ = ("MqttMessage", "is_filter", "is_topic")

_NOT_IN_A_TOPIC: Final = re.compile(
    "[+#\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff\\ufdd0-\\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
"""Wildcards, and characters over which a broker may end the connection."""


@dataclass(frozen=True, slots=True)
class MqttMessage:
    """
    A message, as a source with `messages=True` gives it and every sink takes it.

    Attributes:
        value: decoded.
        topic: where it was, or is to go; "", for a sink: where the sink writes.
        retain: the broker keeps it, or is to keep it, for those who come later.
    """

    value: Any
    topic: str = ""
    retain: bool = False


def is_topic(name: object) -> TypeGuard[str]:
    """Whether something may be published to a topic of this name."""
    return isinstance(name, str) and bool(name) and not _NOT_IN_A_TOPIC.search(name)


def is_filter(name: str) -> bool:
    """Whether wildcards stand for whole levels in it, and `#` for the last ones."""
    *levels, last = name.split("/")
    wild = [level for level in (*levels, last) if "+" in level or "#" in level]
    return all(level in ("+", "#") for level in wild) and "#" not in levels
