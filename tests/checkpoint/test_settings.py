"""What a user says about checkpoints is checked when it is said."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from asyncstream import Checkpoints, MemoryStore, PipelineError


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"store": "here"}, "store"),
        ({"store": MemoryStore}, "store"),
        ({"every": 0}, "every"),
        ({"keep": 0}, "keep"),
        ({"codec": "xml"}, "codec"),
        ({"tolerate": -1}, "tolerate"),
        ({"timeout": None}, "timeout"),
        ({"restore": "latest"}, "restore"),
        ({"restore": 0}, "restore"),
        ({"allow_dropped": "window"}, "allow_dropped"),
        ({"renamed": {"a": "c", "b": "c"}}, "renamed"),
        ({"renamed": {3: "w"}}, "renamed"),
        ({"migrate": ["w"]}, "migrate"),
        ({"migrate": {"w": 3}}, "migrate"),
    ],
    ids=str,
)
def test_wrong_setting_is_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(PipelineError, match=named):
        Checkpoints(**{"store": MemoryStore(), **wrong})


def test_store_may_stand_first_and_a_path_is_told_its_store() -> None:
    store = MemoryStore()
    assert Checkpoints(store, every=2).store is store
    for wrong in ("state", Path("state")):
        with pytest.raises(PipelineError, match=r"store: expected .*; e\.g\. DirectoryStore\('state'\)$"):
            Checkpoints(wrong, every=2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="positional"):
        Checkpoints(store, 2)  # type: ignore[call-arg]


def test_durations_are_seconds_or_timedeltas() -> None:
    settings = Checkpoints(store=MemoryStore(), every=timedelta(milliseconds=1500), timeout=2)
    assert (settings.every_seconds, settings.timeout_seconds) == (1.5, 2.0)
