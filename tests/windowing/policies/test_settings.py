from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from asyncstream.errors import PipelineError
from asyncstream.windowing.policies import policy_settings, policy_window

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length: expected an integer of at least 1"),
        ({"length": -3}, "length"),
        ({"length": True}, "length: expected an int .* or a timedelta"),
        ({"length": 2.5}, "length: expected an int .* or a timedelta"),
        ({"length": timedelta(0)}, "length: expected a positive duration"),
        ({"length": timedelta(microseconds=1)}, "whole number of milliseconds"),
        ({"length": 5, "slide": 0}, "slide"),
        ({"length": 5, "slide": 5, "tumbling": True}, "slide: expected None with tumbling=True"),
        ({"length": 5, "time": "wall"}, "time: expected one of"),
        ({"length": 5, "lag": -1}, "lag"),
        ({"length": 5, "watermark_interval": 0}, "watermark_interval"),
        ({"length": 5, "idle_after": 0}, "idle_after"),
        ({"length": 5, "streams": []}, "streams"),
        ({"length": 5, "streams": "ab"}, "streams"),
        ({"length": 5, "streams": ["a", "a"]}, "streams"),
        ({"length": 5, "late": ""}, "late"),
        ({"length": 5, "late": "tardy", "time": "processing"}, "no element is late"),
        ({"length": 5, "streams": ["a"], "time": "processing"}, "streams: expected nothing with time="),
        ({"length": 5, "idle_after": 5, "time": "processing"}, "idle_after: expected nothing"),
        ({"length": 5, "late": "tardy", "outputs": ["other"]}, "one of the outputs"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        policy_settings(**arguments)


def test_streams_and_their_function_come_together() -> None:
    with pytest.raises(PipelineError, match="stream_of"):
        policy_window(5, streams=["a"])
    with pytest.raises(PipelineError, match="stream_of"):
        policy_window(5, stream_of=str)


def test_functions_must_be_plain_functions() -> None:
    async def total(window: Any) -> int:
        return 1

    with pytest.raises(PipelineError, match="function: expected a plain function"):
        policy_window(5, function=total)
    with pytest.raises(PipelineError, match="key_by: expected a function"):
        policy_window(5, key_by="name")  # type: ignore[arg-type]
