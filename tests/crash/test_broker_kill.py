"""
A pipeline from Redis to PostgreSQL is killed again and again, at any moment: each entry has one result in the
end, and those that are not in a checkpoint only are acknowledged.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis import Redis

from tests.crash.broker_app import GROUP, STREAM
from tests.crash.kills import PATIENCE, ROOT

pytestmark = pytest.mark.broker

EVENTS = 1500
KILLS = 5


@pytest.mark.timeout(300)
def test_each_entry_has_one_result(tmp_path: Path, redis_url: str, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as database:
        database.execute("CREATE TABLE results (id int, doubled int)")
    with Redis.from_url(redis_url) as redis, redis.pipeline() as adding:
        for number in range(EVENTS):
            adding.xadd(STREAM, {"data": json.dumps({"id": number})})
        adding.execute()

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.crash.broker_app", str(tmp_path), redis_url, postgres_url]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    chance = random.Random(17)
    killed = 0
    for _ in range(KILLS):
        process = start()
        assert process.stdout is not None
        is_reading = process.stdout.readline() == b"reading\n"
        time.sleep(chance.uniform(0.0, 0.25))
        process.kill()
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode in (0, -9), errors.decode()
        killed += is_reading and process.returncode == -9
    last = start()
    _, errors = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, errors.decode()

    assert killed >= 2
    with psycopg.connect(postgres_url) as database:
        found = database.execute("SELECT id, doubled FROM results ORDER BY id").fetchall()
    assert found == [(number, 2 * number) for number in range(EVENTS)]
    with Redis.from_url(redis_url) as redis:
        about: Any = redis.xpending(STREAM, GROUP)
    assert about["pending"] < EVENTS  # what no checkpoint is kept without
