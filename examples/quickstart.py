"""
The quickstart: ask a slow service about each flight, many at once, and keep the flights in order.

Calls that fail or take too long go their own way, and everything else goes on.

    python -m examples.quickstart
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["asyncstream"]
#
# [tool.uv.sources]
# asyncstream = { path = "..", editable = true }
# ///

from __future__ import annotations

import asyncio

from asyncstream import FailedCall, Pipeline

FLIGHTS = [{"flight": f"UA{number}", "tail": f"N{number}"} for number in range(100, 200)]


async def with_plane(flight: dict[str, str]) -> dict[str, str]:
    """Stands for a call of a service: it is slow, sometimes fails, and once does not answer."""
    number = int(flight["tail"][1:])
    if number == 113:
        raise LookupError("no such plane")
    await asyncio.sleep(60 if number == 142 else number % 7 / 1000)
    return flight | {"plane": ("A320", "B737")[number % 2]}


async def main() -> None:
    enriched: list[dict[str, str]] = []
    failed: list[FailedCall] = []

    pipeline = Pipeline("quickstart")
    flights = pipeline.source(FLIGHTS).async_map(
        with_plane, concurrency=50, timeout=0.25, on_error="route", on_timeout="route"
    )
    flights.to(enriched)
    flights.failed.union(flights.timed_out).to(failed)
    await pipeline.run()

    print(f"{len(enriched)} flights in order, from {enriched[0]} to {enriched[-1]}")
    for call in failed:
        print(f"no plane for {call.value['flight']}: {call.error!r}")


if __name__ == "__main__":
    asyncio.run(main())
