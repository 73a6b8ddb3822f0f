"""
Spark's map state with the chunks of logs, which a task asks for when there is something to read or to write.

To ask for a map is the dearest call of a task with few rows: Spark makes two encoders for it, of what Python
tells it as JSON, 7 ms in the first fifty micro-batches and 2 ms when its code is compiled. Most micro-batches
read and write heads alone (`group_log`). PySpark would have all variables asked for when a task begins, and
the JVM holds it to that; so for as long as the question takes the task is said to be beginning. Before 4.3
Spark reads no checkpoint in which a partition lacks a variable: there it is asked for at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncstream.runtime.spark.release import is_since

__all__ = ("Chunks",)


class Chunks:
    """
    A map state as PySpark has it.

    Args:
        handle: of the task, which is beginning.
        ask: asks it for the map.
    """

    def __init__(self, handle: Any, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._client = _client_of(handle)
        self._map = ask() if self._client is None else None

    def getValue(self, key: tuple[int]) -> tuple[bytes, bool]:
        value: tuple[bytes, bool] = self._opened().getValue(key)
        return value

    def updateValue(self, key: tuple[int], value: tuple[bytes, bool]) -> None:
        self._opened().updateValue(key, value)

    def removeKey(self, key: tuple[int]) -> None:
        self._opened().removeKey(key)

    def _opened(self) -> Any:
        if self._map is None:
            from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorHandleState

            is_now = self._client.handle_state
            self._client.set_handle_state(StatefulProcessorHandleState.CREATED)
            try:
                self._map = self._ask()
            finally:
                self._client.set_handle_state(is_now)
        return self._map


def _client_of(handle: Any) -> Any:
    """What talks to the JVM for a task; None where that is to be told of all variables at once."""
    if not is_since(4, 3):
        return None
    from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorHandleState

    client = getattr(handle, "_statefulProcessorApiClient", None)
    is_task = getattr(client, "handle_state", None) is StatefulProcessorHandleState.CREATED
    return client if is_task else None
