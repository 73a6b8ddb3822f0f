"""
What a message of MQTT is in a pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ("MqttMessage",)


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
