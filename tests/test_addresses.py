"""
Addresses of servers: which are refused, and that no password is shown of those that are.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.addresses import redis_address, server_address, without_secrets
from asyncstream.connectors import NatsSink, PostgresSink, RedisStreamSink
from asyncstream.connectors.http import HttpLookup, SseSource
from asyncstream.connectors.http.urls import shown
from asyncstream.connectors.mqtt import MqttSink
from asyncstream.errors import MissingExtra, PipelineError
from asyncstream.guards import RedisCache, SharedLimit
from asyncstream.shown import shown_value

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
        ("htp", HttpLookup),
        ("htp", SseSource),
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


KEYS = (
    "https://hooks.slack.example/services/T00AA00/B00BB00/{}",
    "https://api.telegram.example/{}/sendMessage",
    "https://stream.example/feed/{}?compress=1",
    "https://hooks.example/{}",
    "HTTPS://hooks.example/{}#part",
    "https://stream.example/feed#access_token={}",
)
LETTERS = string.ascii_letters + string.digits


@given(
    st.one_of(
        st.text("0123456789abcdef", min_size=32, max_size=64),
        st.text(LETTERS, min_size=17, max_size=60).map(lambda text: f"aB3{text}"),
        st.text(LETTERS, min_size=17, max_size=60).map(lambda text: f"bot110201543:aB{text}"),
    ),
    st.sampled_from(KEYS),
)
def test_a_key_in_the_path_of_the_web_is_not_shown(key: str, form: str) -> None:
    url = form.format(key)
    for text in (without_secrets(url), shown(url), repr(SseSource(url)), shown_value("sink", url)):
        assert key not in text
        assert url.split("/")[2] in text


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example/passengers/by-booking-reference/2026-11-27",
        "https://api.example/orders/6f1c2a10-9f0e-4a51-8d1c-2f7a0b0f6c11/",
        "https://api.example/v1/planes/{tailnum}/maintenance_records_by_year",
        "https://api.example/Reports/QuarterlyRevenueByRegion2026.json",
        "https://example.com/20261127120000000000/",
        "sqlite:////var/lib/aB3aB3aB3aB3aB3aB3aB3aB3aB3/limits.db",
    ],
)
def test_a_path_that_has_no_key_is_shown(url: str) -> None:
    assert without_secrets(url) == url


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


@pytest.mark.parametrize(
    "url", ["unix://run/redis.sock", "unix://./redis.sock", "unix:redis.sock", "unix://"]
)
def test_a_socket_of_redis_has_an_absolute_path(url: str) -> None:
    """redis-py takes what stands before the path for nothing, and connects to another one, or to none."""
    with pytest.raises(PipelineError, match=r"for example unix:///run/redis\.sock"):
        redis_address(url, "RedisCache")


@pytest.mark.parametrize("url", ["unix:///run/redis.sock?db=1", "unix://me:pass@/run/redis.sock"])
def test_a_socket_of_redis_may_have_a_user_and_a_database(url: str) -> None:
    assert redis_address(url, "RedisCache") == url


@pytest.mark.parametrize("path", ["/x", "/0/1", "/-1", "/1x", "//"])
def test_a_database_of_redis_has_a_number(path: str) -> None:
    """redis-py takes what is no number for 0, and what is two for one."""
    with pytest.raises(PipelineError, match="url: expected the address of a Redis server"):
        redis_address(f"redis://host{path}", "RedisCache")
    for right in ("", "/", "/15", "/?db=1"):
        redis_address(f"rediss://host:6380{right}", "RedisCache")
