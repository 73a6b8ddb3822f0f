"""
Policy windows against a slow, obvious model, and against themselves restarted after every step.

The model keeps every element for ever and answers each window by looking through all of them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.windowing.policies import (
    EXPIRED,
    LATE,
    SKIPPED,
    CountEviction,
    Decision,
    Event,
    EvictionPolicy,
    Firing,
    PolicySettings,
    PolicyWindowOperator,
    TimeEviction,
    WatermarkCountEviction,
    WatermarkTimeEviction,
    policy_settings,
)
from asyncstream.windowing.policies.eviction import Partition
from tests.windowing.policies.subject import Subject


class Model:
    """What windows there are, by looking through everything that ever arrived."""

    def __init__(self, asked: PolicySettings) -> None:
        self.asked = asked
        self.now = 0
        self.elements: list[tuple[int, int]] = []  # taken: (id, timestamp)
        self.held: list[tuple[int, int]] = []  # for count lengths: those that have not been pushed out
        self.windows: list[tuple[list[int], int]] = []
        self.seen: set[int] = set()
        self.late: list[int] = []
        self.highest: int | None = None
        self.watermark: int | None = None
        self.tick_at: int | None = None
        self.last_end: int | None = None
        self.counted: int | None = None
        self.since = 0
        self.processed = 0

    def push(self, elements: list[tuple[int, int]]) -> None:
        self.on_time(self.now)
        for name, stamp in elements:
            if not self.asked.event_time:
                self.take(name, self.now)
                continue
            self.highest = stamp if self.highest is None else max(self.highest, stamp)
            if self.watermark is not None and stamp < self.watermark:
                self.late.append(name)
            else:
                self.take(name, stamp)
        if self.asked.event_time and self.tick_at is None:
            self.tick_at = self.now + self.asked.watermark_interval_ms

    def take(self, name: int, stamp: int) -> None:
        self.elements.append((name, stamp))
        self.held.append((name, stamp))
        if not self.asked.event_time and self.asked.slide_count:
            self.since += 1
            if self.since == self.asked.slide_count:
                self.since = 0
                self.show(self.reaching(self.now), self.now)

    def on_time(self, now: int) -> None:
        self.now = now
        if not self.asked.event_time:
            if self.asked.slide_ms:
                self.fire_ends(now - 1)
        elif self.tick_at is not None and now >= self.tick_at:
            self.tick_at = None
            assert self.highest is not None
            watermark = self.highest - self.asked.lag_ms
            if self.watermark is None or watermark > self.watermark:
                self.watermark = watermark
                if self.asked.slide_ms:
                    self.fire_ends(watermark)
                else:
                    self.fire_counts(watermark)

    def fire_ends(self, until: int, only_one: bool = False) -> None:
        slide = self.asked.slide_ms
        assert slide is not None
        reach = slide + (self.asked.length_ms or 0)
        earliest = min((stamp for _, stamp in self.elements), default=until)
        latest = max((stamp for _, stamp in self.elements), default=until) + reach
        for end in range(-(-earliest // slide) * slide, min(until, latest) + 1, slide):
            if self.last_end is not None and end <= self.last_end:
                continue
            if self.asked.length_count and not any(
                name not in self.seen for name, stamp in self.held if stamp <= end
            ):
                continue
            window = self.reaching(end)
            if window:
                self.last_end = end
                self.show(window, end)
                if only_one:
                    return

    def fire_counts(self, until: int) -> None:
        slide = self.asked.slide_count
        assert slide is not None
        eligible = [
            stamp
            for _, stamp in self.elements
            if stamp <= until and (self.counted is None or stamp > self.counted)
        ]
        for number in range(slide, len(eligible) + 1, slide):
            self.counted = max(eligible[:number])
            if self.asked.length_ms:
                self.show(self.reaching(self.counted), self.counted)
            else:
                self.show(self.next_by_count(self.counted, slide), self.counted)

    def reaching(self, end: int) -> list[int]:
        """The window that reaches back from `end`."""
        if self.asked.length_ms:
            start = end - self.asked.length_ms
            return [name for name, stamp in self.elements if start < stamp <= end]
        assert self.asked.length_count is not None
        known = [element for element in self.held if element[1] <= end]
        gone = set(known[: -self.asked.length_count])
        self.held = [element for element in self.held if element not in gone]
        return [name for name, _ in known[-self.asked.length_count :]]

    def next_by_count(self, end: int, slide: int) -> list[int]:
        length = self.asked.length_count
        assert length is not None
        current, self.processed = self.processed + slide, 0
        window: list[int] = []
        held: list[tuple[int, int]] = []
        for name, stamp in self.held:
            if stamp <= end and current > length:
                current -= 1
                continue
            held.append((name, stamp))
            if stamp <= end and len(window) < current:
                window.append(name)
        self.processed = len(window)
        self.held = held
        return window

    def show(self, window: list[int], end: int) -> None:
        if window:
            self.windows.append((window, end))
            self.seen.update(window)


counts = st.integers(1, 6)
spans = st.sampled_from([1, 3, 5, 10, 20])
extents = st.one_of(counts, spans.map(lambda ms: timedelta(milliseconds=ms)))


class PolicyWindows(RuleBasedStateMachine):
    @initialize(
        length=extents,
        slide=extents,
        time=st.sampled_from(["event", "processing"]),
        lag=st.sampled_from([0, 0.003, 0.02]),
    )
    def begin(self, length: Any, slide: Any, time: Any, lag: float) -> None:
        asked = policy_settings(length, slide, time=time, lag=lag, watermark_interval=0.005)
        self.asked = asked
        self.subject = Subject(PolicyWindowOperator(asked))
        self.restarted = Subject(PolicyWindowOperator(asked))
        self.model = Model(asked)
        self.next = 0
        self.base = 0

    @rule(offsets=st.lists(st.integers(-15, 30), min_size=1, max_size=8))
    def push(self, offsets: list[int]) -> None:
        elements = [(self.next + place, self.base + offset) for place, offset in enumerate(offsets)]
        self.next += len(elements)
        for subject in (self.subject, self.restarted):
            subject.operator.process_batch([name for name, _ in elements], [stamp for _, stamp in elements])
        self.model.push(elements)

    @rule(jump=st.sampled_from([-200, 5, 10, 60]))
    def move_event_time(self, jump: int) -> None:
        self.base += jump

    @rule(step=st.sampled_from([1, 2, 5, 11, 70]))
    def move_clock(self, step: int) -> None:
        self.model.on_time(self.model.now + step)
        for subject in (self.subject, self.restarted):
            subject.at(self.model.now)

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        for subject in (self.subject, self.restarted):
            subject.end()
        if self.asked.slide_ms:
            if not self.asked.event_time:
                self.model.fire_ends(self.model.now - 1)
                self.model.fire_ends(MAX_TIMESTAMP, only_one=True)  # the clock does not run on
            else:
                self.model.fire_ends(MAX_TIMESTAMP)
            assert self.windows() == self.model.windows
        assert self.restarted.log == self.subject.log
        self.no_result_is_late_downstream()
        self.every_element_is_accounted_for()

    def windows(self) -> list[tuple[list[int], int]]:
        return self.subject.windows()

    @invariant()
    def same_as_model_and_as_if_never_restarted(self) -> None:
        assert self.windows() == self.model.windows
        assert sorted(self.subject.named(LATE)) == sorted(self.model.late)
        assert self.restarted.log == self.subject.log
        self.restarted.restart(PolicyWindowOperator(self.asked))

    @invariant()
    def no_result_is_late_downstream(self) -> None:
        if not self.asked.event_time:
            return
        promised = None
        for name, _, timestamp in self.subject.log:
            if name == "watermark":
                assert promised is None or timestamp >= promised
                promised = timestamp
            elif name == "window":
                assert promised is None or timestamp > promised

    def every_element_is_accounted_for(self) -> None:
        shown: set[int] = set()
        for window in self.subject.named("window"):
            assert set(window.values) - shown <= set(window.new) <= set(window.values)
            shown |= set(window.values)
        late, skipped = self.subject.named(LATE), self.subject.named(SKIPPED)
        assert sorted([*shown, *late, *skipped]) == list(range(self.next))
        assert sorted([*self.subject.named(EXPIRED), *late]) == list(range(self.next))
        told = [name for window in self.subject.named("window") for name in window.expired]
        assert len(told) == len(set(told))


TestPolicyWindows = PolicyWindows.TestCase
TestPolicyWindows.settings = settings(max_examples=250, stateful_step_count=30, deadline=None)


policies = st.sampled_from(
    [
        (CountEviction, False),
        (TimeEviction, True),
        (WatermarkTimeEviction, True),
        (WatermarkCountEviction, True),
    ]
)


def parted_one_by_one(policy: EvictionPolicy, events: list[Event]) -> Partition:
    """What its decisions about one event after the other amount to."""
    parts = Partition([], [], [])
    for position, event in enumerate(events):
        decision = policy.evict(event.timestamp, 0)
        if decision is Decision.STOP:
            parts.held += events[position:]
            break
        (parts.expired if decision is Decision.EXPIRE else parts.held).append(event)
        if decision is Decision.PROCESS:
            parts.window.append(event)
    return parts


@given(
    policies,
    st.integers(1, 8),
    st.lists(st.lists(st.integers(-20, 20), max_size=8), max_size=6),
    st.integers(1, 5),
)
@settings(max_examples=300, deadline=None)
def test_many_decisions_at_once_are_the_same_as_one_by_one(
    kind: tuple[type[Any], bool], length: int, rounds: list[list[int]], slide: int
) -> None:
    make, reads_time = kind
    at_once: EvictionPolicy = make(length)
    one_by_one: EvictionPolicy = make(length)
    held: list[Event] = []
    for number, stamps in enumerate(rounds):
        reference = number * 10
        held = held + [Event(None, stamp, 0) for stamp in stamps if not reads_time or stamp <= reference]
        for policy in (at_once, one_by_one):
            policy.track(len(stamps))
            policy.set_context(Firing(reference, slide_count=slide))
        expected = parted_one_by_one(one_by_one, held)
        assert at_once.partition(held, 0) == expected
        assert at_once.snapshot() == one_by_one.snapshot()
        held = expected.held
