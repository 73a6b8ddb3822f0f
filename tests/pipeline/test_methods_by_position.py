"""Methods that users override are called by position, and say so: users name the arguments as they like."""

from __future__ import annotations

import inspect

import pytest

from asyncstream import (
    AsyncFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    Sink,
    Source,
    TransactionalSink,
)
from asyncstream.checkpoint import CheckpointStore
from asyncstream.codec import Codec
from asyncstream.eventtime import WatermarkGenerator
from asyncstream.guards import Limiter
from asyncstream.state import Aggregation
from asyncstream.windowing import AggregateFunction, Evictor, ProcessWindowFunction, Trigger, WindowAssigner

METHODS = {
    AsyncFunction: ("invoke", "timeout"),
    KeyedProcessFunction: ("open", "process_element", "on_timer"),
    KeyedCoProcessFunction: ("open", "process_left", "process_right", "process_input", "on_timer"),
    KeyedBroadcastProcessFunction: ("open", "process_element", "process_broadcast", "on_timer"),
    AggregateFunction: ("add", "merge", "result"),
    ProcessWindowFunction: ("process", "clear"),
    Trigger: ("on_element", "on_event_time", "on_processing_time", "on_merge", "clear"),
    Evictor: ("kept", "before", "after"),
    WindowAssigner: ("assign",),
    Sink: ("write", "write_batch"),
    Source: ("can_seek", "seek", "acknowledge", "forget", "hold"),
    TransactionalSink: ("can_recover", "recover", "prepare", "commit"),
    Aggregation: ("add", "merge", "result"),
    CheckpointStore: ("acquire", "renew", "release", "put", "commit", "read", "delete"),
    Codec: ("encode", "decode"),
    Limiter: ("acquire",),
    WatermarkGenerator: ("on_element", "restore"),
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in METHODS.items() for name in names]
)
def test_method_of_a_user_may_name_its_arguments_as_it_likes(kind: type, name: str) -> None:
    _, *arguments = inspect.signature(getattr(kind, name)).parameters.values()
    assert {argument.kind for argument in arguments} == {inspect.Parameter.POSITIONAL_ONLY}
