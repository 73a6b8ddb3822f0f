"""
A pipeline from a broker to PostgreSQL is killed again and again, at any moment. From Redis each entry has one
result in the end; from MQTT, whose messages have no identity, each has one at least, and no more than there
were processes.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis import Redis

from asyncstream import Pipeline
from asyncstream.connectors.mqtt import MqttSink
from tests.crash.broker_app import GROUP, STREAM, events_of
from tests.crash.ending import let_end
from tests.crash.kills import PATIENCE, ROOT
from tests.servers.mqtt import MqttServer

pytestmark = pytest.mark.broker

KILLS = 5


def numbered(events: int) -> list[dict[str, Any]]:
    return [{"id": number, "last": number == events - 1} for number in range(events)]


class Processes:
    """
    Of one folder, one after the other.

    Args:
        broker, postgres: the URLs of the servers.
    """

    def __init__(self, folder: Path, broker: str, postgres: str) -> None:
        self._command = [sys.executable, "-m", "tests.crash.broker_app", str(folder), broker, postgres]
        self._postgres = postgres
        with psycopg.connect(postgres, autocommit=True) as database:
            database.execute("CREATE TABLE results (id int, doubled int)")

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def killed(self, seed: int) -> None:
        """Start and kill so many in the middle of their work."""
        chance = random.Random(seed)
        for _ in range(KILLS):
            process = self.start()
            assert process.stdout is not None
            said = process.stdout.readline()
            time.sleep(chance.uniform(0.0, 0.25))
            process.kill()
            _, errors = process.communicate(timeout=PATIENCE)
            assert (said, process.returncode) == (b"reading\n", -signal.SIGKILL), errors.decode()

    def results(self) -> list[Any]:
        with psycopg.connect(self._postgres) as database:
            return database.execute("SELECT id, doubled FROM results ORDER BY id").fetchall()


def test_each_entry_of_redis_has_one_result(tmp_path: Path, redis_url: str, postgres_url: str) -> None:
    events = 1500
    with Redis.from_url(redis_url) as redis, redis.pipeline() as adding:
        for event in numbered(events):
            adding.xadd(STREAM, {"data": json.dumps(event)})
        adding.execute()

    processes = Processes(tmp_path, redis_url, postgres_url)
    processes.killed(17)
    let_end(tmp_path)
    last = processes.start()
    _, errors = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, errors.decode()

    assert processes.results() == [(number, 2 * number) for number in range(events)]
    with Redis.from_url(redis_url) as redis:
        about: Any = redis.xpending(STREAM, GROUP)
    assert about["pending"] < events  # what no checkpoint is kept without


def test_each_message_of_mqtt_has_a_result(
    tmp_path: Path, mqtt_server: MqttServer, postgres_url: str
) -> None:
    events = 900  # the broker keeps a thousand of a client that is away

    async def publish() -> None:
        session, publishing = Pipeline("session"), Pipeline("publishing")
        session.source(events_of(mqtt_server.url), name="in").discard()
        async with session.start() as job:  # so that the broker keeps what comes
            await job.stop()
        publishing.source(numbered(events), name="in").to(MqttSink(mqtt_server.url, STREAM), name="out")
        await publishing.run()

    asyncio.run(publish())
    processes = Processes(tmp_path, mqtt_server.url, postgres_url)
    processes.killed(18)
    let_end(tmp_path)
    last = processes.start()
    until = time.monotonic() + PATIENCE
    while len(set(processes.results())) < events and last.poll() is None and time.monotonic() < until:
        time.sleep(0.05)  # of a real process
    last.kill()
    _, errors = last.communicate(timeout=PATIENCE)
    assert last.returncode == -signal.SIGKILL, errors.decode()

    found = Counter(processes.results())
    assert sorted(found) == [(number, 2 * number) for number in range(events)]
    assert max(found.values()) <= KILLS + 1  # once more for each time that acknowledgements were lost
