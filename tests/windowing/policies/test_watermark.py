from __future__ import annotations

import pytest

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.errors import PipelineError
from asyncstream.windowing.policies import WatermarkEventGenerator


def test_watermark_is_the_slowest_streams_newest_less_the_lag() -> None:
    generator = WatermarkEventGenerator(5, ["a", "b"])
    generator.track("a", 100)
    assert generator.tick() is None
    generator.track("b", 50)
    assert generator.tick() == 45


def test_nothing_is_late_before_the_first_watermark() -> None:
    generator = WatermarkEventGenerator(0, ["a"])
    assert generator.watermark_ms == MIN_TIMESTAMP
    assert generator.track("a", -1_000)
    assert generator.tick() == -1_000
    assert not generator.track("a", -1_001)


def test_undeclared_stream_is_judged_but_not_waited_for() -> None:
    generator = WatermarkEventGenerator(0, ["a"])
    generator.track("a", 100)
    assert generator.track("z", 10)
    assert generator.tick() == 100
    assert not generator.track("z", 10)
    generator.track("a", 200)
    assert generator.tick() == 200


def test_no_stream_to_wait_for_is_refused() -> None:
    with pytest.raises(PipelineError, match="at least one stream"):
        WatermarkEventGenerator(0, [])


def test_silent_stream_becomes_idle_and_counts_again_when_it_speaks() -> None:
    generator = WatermarkEventGenerator(0, ["a", "b"], idle_after_ms=100)
    generator.track("a", 10, now_ms=0)
    generator.track("b", 5, now_ms=0)
    assert generator.tick(0) == 5
    generator.track("a", 20, now_ms=60)
    assert generator.tick(99) is None
    assert generator.tick(100) == 20
    generator.track("b", 21, now_ms=110)
    generator.track("a", 40, now_ms=110)
    assert generator.tick(111) == 21


def test_all_streams_idle_go_as_far_as_anybody_has_come() -> None:
    generator = WatermarkEventGenerator(0, ["a", "b"])
    generator.track("a", 30)
    generator.mark_idle("a")
    generator.mark_idle("b")
    assert generator.tick() == 30


def test_idleness_of_an_unknown_stream_is_refused() -> None:
    with pytest.raises(PipelineError, match="no stream 'c'"):
        WatermarkEventGenerator(0, ["a"]).mark_idle("c")


def test_restored_generator_goes_on() -> None:
    generator = WatermarkEventGenerator(0, ["a", "b"])
    generator.track("a", 30)
    generator.track("b", 20)
    generator.tick()
    generator.mark_idle("b")
    restored = WatermarkEventGenerator(0, ["a", "b"])
    for name, cell in generator.cells().items():
        restored.cells()[name].give(cell.take())
    assert not restored.track("a", 19)
    assert restored.tick() == 30
