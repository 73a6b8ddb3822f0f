"""
What of a job goes into a checkpoint: captured in one moment, between two callbacks of the loop, and encoded
afterwards, while the job runs on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from asyncstream.checkpoint import CheckpointInfo, Checkpoints, StepInfo, noted
from asyncstream.checkpoint.format import Draft, Role, pack
from asyncstream.checkpoint.parts import CannotKeep, Encoded, Part, encode_state, parts_of
from asyncstream.checkpoint.segments import ABOUT
from asyncstream.codec import Codec
from asyncstream.errors import CheckpointError, describe_error
from asyncstream.plan import Graph
from asyncstream.runtime.aio.table_log import TableLog
from asyncstream.runtime.aio.wiring import RunWiring
from asyncstream.runtime.aio.writing import SinkOperator
from asyncstream.state import Frozen, freeze

__all__ = ("Captured", "Captures")

Captured: TypeAlias = dict[str, tuple[Role, Frozen[Any]]]
"""By step: its role, and what it remembers."""


@dataclass(frozen=True)
class Captures:
    """
    Takes and encodes what the steps of one run remember, by the settings of the job.
    """

    _graph: Graph
    _codec: Codec
    _tables: TableLog
    _settings: Checkpoints

    def take(self, wiring: RunWiring) -> Captured:
        """What every step remembers at this instant."""
        captured: Captured = {}
        name = ""
        try:
            for name, driver in wiring.sources.items():
                captured[name] = ("source", self.held(name, freeze(driver.saved())))
            for name, operator in wiring.operators.items():
                if self._graph[name].schema is None:
                    if operator.tables:
                        raise CannotKeep(
                            f"step {name!r} has tables, of which its spec says nothing: a spec without a "
                            "key needs a `schema`, or they would be lost"
                        )
                    continue
                if isinstance(operator, SinkOperator) and operator.has_epochs:
                    continue
                if operator.tables:
                    captured[name] = ("operator", self.held(name, freeze(self._tables.cut(name).about)))
                else:
                    captured[name] = ("operator", self.held(name, operator.capture()))
        except CheckpointError:
            raise
        except Exception as error:  # of a part that the user wrote
            raise CannotKeep(f"step {name!r} gives no snapshot: {describe_error(error)}") from error
        return captured

    def held(self, step: str, frozen: Frozen[Any]) -> Frozen[Any]:
        """What cannot be copied is encoded at once: by the next callback it may have changed."""
        if not frozen.is_live:
            return frozen
        encoded = self._encoded(step, frozen.thaw())
        return Frozen(lambda: encoded, sum(len(data) for _, data in encoded or ()), is_live=True)

    def _encoded(self, step: str, state: Any) -> Encoded | None:
        return None if state is None else encode_state(step, state, self._codec)

    def encode(self, captured: Captured, about: CheckpointInfo) -> Draft:
        """
        The bytes of the checkpoint; may run in a thread.

        Args:
            captured: what `take` gave, and the positions of sinks.
            about: the checkpoint, without its steps.
        """
        self._tables.encode()
        steps: dict[str, StepInfo] = {}
        states: dict[str, list[Part]] = {}
        for name, (role, frozen) in captured.items():
            state = _thawed(name, frozen) if frozen.is_live else self._encoded(name, _thawed(name, frozen))
            if state is not None:
                if self._tables.keeps(name):
                    state = [(ABOUT + path, data) for path, data in state]
                parts = parts_of(state, self._tables.name_of, self._settings.inline_bytes)
                states[name] = parts + self._tables.parts_of(name)
                step = self._graph[name]
                schema = None if step.schema is None else step.schema.plain()
                steps[name] = StepInfo(role, step.kind, schema)
        return pack(noted(replace(about, steps=steps), self._settings), states)


def _thawed(step: str, frozen: Frozen[Any]) -> Any:
    try:
        return frozen.thaw()
    except Exception as error:  # of a class that can be pickled and not be made again
        raise CannotKeep(
            f"step {step!r} cannot be kept in a checkpoint: of what it remembers, no copy can be made: "
            f"{describe_error(error)}"
        ) from error
