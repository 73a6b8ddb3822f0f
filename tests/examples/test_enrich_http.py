"""The example of a lookup that survives a faulty service."""

from __future__ import annotations

import asyncio

import pytest

from examples import enrich_http


def test_every_flight_is_enriched_although_the_service_misbehaves(capsys: pytest.CaptureFixture[str]) -> None:
    enriched = asyncio.run(asyncio.wait_for(enrich_http.main(), 60))
    assert [flight["flight"] for flight in enriched] == [one["flight"] for one in enrich_http.FLIGHTS]
    for flight in enriched:
        known = not flight["tailnum"].endswith("9")
        assert flight["model"] == (f"A3{flight['tailnum'][-1]}0" if known else None)
    assert "600 flights enriched, 60 of them" in capsys.readouterr().out
