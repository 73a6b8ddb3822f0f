from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from examples.flights.api import FAULTS, Manners, application, serving, tables_by_path
from examples.flights.data import hour_ms, load_weather

ROOT = Path(__file__).parents[2]

KIND = Manners(usual=(0, 0), slow=0, hanging=0, faulty=0)
TABLES: dict[str, Any] = {
    "/planes/N1": {"tailnum": "N1", "seats": 2},
    "/airports/JFK": {"code": "JFK"},
    "/weather/JFK/0": {"rain": 0},
}


def manners(**changes: Any) -> Manners:
    return replace(KIND, **changes)


def paths_with(kind: str, of: Manners, attempt: int = 1) -> list[str]:
    """Paths of planes whose request meets this fate."""
    return [path for path in (f"/planes/N{n}" for n in range(200)) if of.fate(path, attempt).kind == kind]


def session_to(port: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(f"http://127.0.0.1:{port}")


async def get(session: aiohttp.ClientSession, path: str) -> tuple[int, Any]:
    async with session.get(path) as reply:
        return reply.status, await reply.json()


def ask(of: Manners, *paths: str, tables: dict[str, Any] = TABLES) -> list[Any]:
    """What a client sees for each path in turn: status and body, or the type of the error."""

    async def main() -> list[Any]:
        seen: list[Any] = []
        async with serving(application(of, tables)) as port, session_to(port) as session:
            for path in paths:
                try:
                    seen.append(await get(session, path))
                except aiohttp.ClientError as error:
                    seen.append(type(error))
        return seen

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_tables_are_served() -> None:
    assert ask(KIND, *TABLES) == [(200, row) for row in TABLES.values()]


def test_real_tables_are_all_there() -> None:
    tables = tables_by_path()
    assert tables["/planes/N14228"]["seats"] == 149
    assert tables["/airports/IAH"]["name"] == "George Bush Intercontinental"
    (origin, hour), weather = next(iter(load_weather().items()))
    assert hour == hour_ms(hour)
    assert tables[f"/weather/{origin}/{hour}"] == weather


def test_unknown_rows_and_routes_are_not_found() -> None:
    seen = ask(KIND, "/planes/N2", "/weather/JFK/1", "/airports/SJU")
    assert [status for status, _ in seen] == [404] * 3
    assert seen[0][1] == {"error": "nothing at /planes/N2"}


def test_each_fault_is_what_a_client_knows() -> None:
    of = manners(faulty=1)
    kinds = {kind: paths_with(kind, of)[0] for kind in ("unavailable", "throttled", "half")}
    tables = {path: {"a": "x" * 100} for path in kinds.values()}
    unavailable, throttled, half = ask(of, *kinds.values(), tables=tables)
    assert unavailable == (503, {"error": "unavailable"})
    assert throttled == (429, {"error": "too many requests"})
    assert half is aiohttp.ClientPayloadError


def test_reset_connection_breaks_off_without_a_word() -> None:
    of = manners(faulty=1)
    path = paths_with("reset", of)[0]

    async def main() -> None:
        # by hand: aiohttp's client asks a second time by itself when a GET is reset
        async with serving(application(of, TABLES)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_throttled_client_is_told_when_to_come_back() -> None:
    of = manners(faulty=1)

    async def main() -> set[str]:
        async with serving(application(of, TABLES)) as port, session_to(port) as session:
            waits = set()
            for path in paths_with("throttled", of)[:12]:
                async with session.get(path) as reply:
                    waits.add(reply.headers["Retry-After"])
            return waits

    assert asyncio.run(main()) == {"0", "1"}


def test_asking_again_can_help() -> None:
    of = manners(faulty=0.5)
    path = next(path for path in paths_with("unavailable", of) if of.fate(path, 2).kind == "good")
    first, second = ask(of, path, path, tables={path: {"seats": 2}})
    assert first[0] == 503
    assert second == (200, {"seats": 2})


def test_run_can_be_repeated_and_another_seed_is_another_run() -> None:
    of = manners(faulty=0.5)
    paths = [f"/planes/N{n}" for n in range(20)] * 2
    assert ask(of, *paths) == ask(of, *paths)
    assert ask(of, *paths) != ask(manners(faulty=0.5, seed=14), *paths)


def test_fates_come_in_the_shares_that_were_asked_for() -> None:
    of = Manners()
    fates = [of.fate(f"/planes/{n}", attempt) for n in range(5000) for attempt in (1, 2)]
    kinds = Counter(fate.kind for fate in fates)
    assert 0.005 < kinds["slow"] / len(fates) < 0.013
    assert 0.0001 < kinds["hanging"] / len(fates) < 0.003
    assert all(kinds[kind] > 0 for kind in FAULTS)
    assert 0.003 < sum(kinds[kind] for kind in FAULTS) / len(fates) < 0.008
    assert all(0.001 <= fate.seconds <= 0.005 for fate in fates if fate.kind == "good")
    assert all(0.1 <= fate.seconds <= 0.3 for fate in fates if fate.kind == "slow")


def test_hanging_request_can_be_given_up_and_stats_tell() -> None:
    async def main() -> dict[str, Any]:
        async with serving(application(manners(hanging=1), TABLES)) as port, session_to(port) as session:
            asking = [asyncio.create_task(get(session, "/planes/N1")) for _ in range(2)]
            stats: dict[str, Any] = {}
            for number in (2, 0):
                while stats.get("in_flight") != number:  # until the service has noticed
                    _, stats = await get(session, "/stats")
                for one in asking:
                    one.cancel()
            await asyncio.wait(asking)
            assert all(one.cancelled() for one in asking)
            return stats

    assert asyncio.run(asyncio.wait_for(main(), 60)) == {
        "requests": 2,
        "paths": 1,
        "most_asked": 2,
        "in_flight": 0,
        "most_in_flight": 2,
        "kinds": {"hanging": 2},
        "statuses": {},
    }


def test_process_prints_its_port_and_stops_when_told() -> None:
    async def main() -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.flights.api", "--port", "0", "--well-behaved"),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            port = int(await asyncio.wait_for(process.stdout.readline(), 60))
            async with session_to(port) as session:
                status, plane = await get(session, "/planes/N14228")
                assert (status, plane["manufacturer"]) == (200, "BOEING")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 60) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    asyncio.run(main())
