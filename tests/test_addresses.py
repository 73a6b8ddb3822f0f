"""
Addresses of servers: which are refused, and that no password is shown of those that are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.addresses import redis_address, server_address, without_secrets
from asyncstream.connectors import NatsSink, PostgresSink, RedisStreamSink
from asyncstream.connectors.mqtt import MqttSink
from asyncstream.errors import MissingExtra, PipelineError
from asyncstream.guards import RedisCache, SharedLimit

PASSWORD = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8).map(
    lambda rest: f"hush{rest}hush"
)

FORMS = (
    "{scheme}://me:{password}@host:port/0",
    "{scheme}://:{password}@[host/0",
    "{scheme}://host:port/0?password={password}",
    "host=here {password}",
    "port=x password={password}",
    "me:{password}@host",
)


@given(PASSWORD, st.sampled_from(FORMS))
def test_no_secret_is_shown(password: str, form: str) -> None:
    assert "hush" not in without_secrets(form.format(scheme="redis", password=password))


@pytest.mark.parametrize(
    ("scheme", "make"),
    [
        ("redis", lambda url: RedisStreamSink(url, "s")),
        ("redis", RedisCache),
        ("redis", SharedLimit),
        ("limits", SharedLimit),
        ("nats", lambda url: NatsSink(url, "s")),
        ("mqtt", lambda url: MqttSink(url, "t")),
        ("postgresql", lambda url: PostgresSink(url, "t", columns=["id"])),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_address_is_refused_without_its_password(
    scheme: str, make: Callable[[str], Any], form: str
) -> None:
    url = form.format(scheme=scheme, password="hush/hush")
    with pytest.raises(PipelineError, match="url: expected ") as told:
        make(url)
    assert "hush" not in str(told.value)
    error = told.value
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


def test_the_place_is_shown() -> None:
    assert without_secrets("redis://me:pass@host:6379/0?password=pass") == "redis://host:6379/0"
    assert without_secrets("sqlite:////var/lib/limits.db") == "sqlite:////var/lib/limits.db"
    with pytest.raises(
        PipelineError, match="url: expected the address of a Redis server, got 'http://host:1'"
    ):
        redis_address("http://me:pass@host:1", "RedisCache")


def test_a_missing_library_is_told_of_by_its_extra() -> None:
    def parse(url: str) -> None:
        raise ImportError(url)

    with pytest.raises(MissingExtra, match=r"Dragonfly needs the extra \[dragonfly\]"):
        server_address("fly://here", "Dragonfly", "dragonfly", "a Dragonfly", parse, "fly://host")
