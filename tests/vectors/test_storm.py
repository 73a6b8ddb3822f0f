"""
Storm's window policies, case by case: what `WindowManager`, the policies, the watermark generator and
the operator answer is what Storm's own classes answered.

Left out, by the rule in `holds_for_us` and by nothing else: cases whose outcome rests on a rule that the
table in `docs/coming-from.md` decides otherwise, or that are tagged as accidents of Storm; and
the kinds about persisted windows and recovery by message ids, which snapshots replace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from asyncstream.elements import Timestamps
from asyncstream.errors import PipelineError, UserFunctionError
from asyncstream.operators.base import Operator, OperatorContext, pairs
from asyncstream.validation import instant_ms
from asyncstream.windowing.policies.events import Event
from asyncstream.windowing.policies.eviction import (
    CountEviction,
    EvictionPolicy,
    Firing,
    TimeEviction,
    WatermarkCountEviction,
    WatermarkTimeEviction,
)
from asyncstream.windowing.policies.manager import WindowManager
from asyncstream.windowing.policies.operator import EXPIRED, PolicyWindow, PolicyWindowOperator
from asyncstream.windowing.policies.settings import LATE, PolicySettings, policy_settings
from asyncstream.windowing.policies.trigger import (
    CountTriggerPolicy,
    TimeTriggerPolicy,
    TriggerPolicy,
    WatermarkCountTriggerPolicy,
    WatermarkTimeTriggerPolicy,
)
from asyncstream.windowing.policies.watermark import WatermarkEventGenerator
from tests.vectors.cases import FOLDER, Case, cases

SAME_AS_STORM = {"arrival-order"}
"""The debatable rules in which we follow Storm; a case that needs another one is left out."""


STORMS_OWN = (
    "topology.message.timeout",
    "topology.max.spout.pending",
    "topology.bolts.message.id.field",
    "topology.state.checkpoint.interval",
    "Duration is too long",
)
"""
In messages of cases that are left out: what Storm refuses since a spout waits for elements to be
acknowledged, or keeps milliseconds in 32 bits. Here no source does the one, and nothing the other.
"""


def holds_for_us(case: Case) -> bool:
    """Whether Storm's answer is ours too; the one place where cases are left out."""
    refused = case["expect"].get("message") or "" if "expect" in case else ""
    if any(words in refused for words in STORMS_OWN):
        return False
    return set(case.get("needs", ())) <= SAME_AS_STORM and "quirk" not in case.get("tags", ())


def ours(file: str, kind: str) -> list[Any]:
    return [param for param in cases(file, kind) if holds_for_us(param.values[0])]


def test_readme_says_how_many_cases_there_are_and_how_many_are_ours() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    sets = ("storm_windows.jsonl", "storm_watermarks.jsonl")
    recorded = sum(len((FOLDER / file).read_text(encoding="utf-8").splitlines()) for file in sets)
    kinds = ("manager", "eviction", "generator", "validation", "bolt")
    held = sum(len(ours(file, kind)) for file in sets for kind in kinds)
    flink = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in FOLDER.glob("flink_*.jsonl"))
    assert f"has {flink:,} cases recorded from Flink" in readme
    assert f"{recorded} from Storm, of which the {held} are run" in readme


EVICTION: dict[str, Callable[[dict[str, Any]], EvictionPolicy]] = {
    "count": lambda config: CountEviction(config["n"]),
    "time": lambda config: TimeEviction(config["ms"]),
    "wm_count": lambda config: WatermarkCountEviction(config["n"]),
    "wm_time": lambda config: WatermarkTimeEviction(config["ms"]),
}


def trigger_policy(config: dict[str, Any], evict: str) -> TriggerPolicy:
    match config["policy"]:
        case "count":
            return CountTriggerPolicy(config["n"])
        case "time":
            return TimeTriggerPolicy(config["ms"], only_new=evict == "count")
        case "wm_count":
            return WatermarkCountTriggerPolicy(config["n"])
        case _:
            return WatermarkTimeTriggerPolicy(config["ms"], only_new=evict == "wm_count")


def storm_state(policy: EvictionPolicy | TriggerPolicy) -> Any:
    """A policy's snapshot as Storm's checkpoint shows it: it has no None, and a slide for the drift."""
    state = policy.snapshot()
    if isinstance(policy, TimeEviction):
        return None if state is None else {"ref": state, "slide_ms": None}
    if isinstance(policy, TimeTriggerPolicy):
        return None
    return 0 if state is None and isinstance(policy, TriggerPolicy) else state


class ManagerScript:
    """Drives a window manager as a case says."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.now = 0
        self.out: list[dict[str, Any]] = []
        self.build(started=config.get("start", True))

    def build(self, started: bool) -> None:
        self.eviction = EVICTION[self.config["evict"]["policy"]](self.config["evict"])
        self.trigger = trigger_policy(self.config["trigger"], self.config["evict"]["policy"])
        self.manager = WindowManager(self.eviction, self.trigger, self.on_window, self.on_expiry, started)

    def on_window(self, window: list[Event], new: list[Event], expired: list[Event], end_ms: int) -> None:
        self.out.append({"window": ids(window), "new": ids(new), "expired": ids(expired), "ref": end_ms})

    def on_expiry(self, expired: list[Event]) -> None:
        self.out.append({"expire": ids(expired)})

    def run(self, step: dict[str, Any]) -> list[dict[str, Any]]:
        self.out = []
        self.now = step.get("now", self.now)
        getattr(self, "do_" + step["op"])(step)
        return self.out

    def do_add(self, step: dict[str, Any]) -> None:
        self.manager.add([step["id"]], [step.get("ts", self.now)], self.now)

    def do_watermark(self, step: dict[str, Any]) -> None:
        self.manager.advance(step["ts"], self.now)

    def do_timer(self, step: dict[str, Any]) -> None:
        self.manager.advance(self.now, self.now)

    def do_trigger(self, step: dict[str, Any]) -> None:
        self.out.append({"fired": self.manager.fire(Firing(step["ref"]), self.now)})

    def do_start(self, step: dict[str, Any]) -> None:
        self.manager.start()

    def do_state(self, step: dict[str, Any]) -> None:
        state = {"evict": storm_state(self.eviction), "trigger": storm_state(self.trigger)}
        self.out.append({"state": state})

    def do_queue(self, step: dict[str, Any]) -> None:
        self.out.append({"queue": ids(self.manager.queue)})

    def do_restart(self, step: dict[str, Any]) -> None:
        eviction, trigger, held = self.eviction, self.trigger, list(self.manager.queue)
        self.build(started=True)
        if step.get("restore"):
            self.eviction.restore(eviction.snapshot())
            self.trigger.restore(trigger.snapshot())
        if step.get("keep_queue") and held:
            self.manager.queue.add(ids(held), [event.timestamp for event in held])


def ids(events: Any) -> list[Any]:
    return [event.value for event in events]


@pytest.mark.parametrize("case", ours("storm_windows.jsonl", "manager"))
def test_window_manager_answers_as_storm_does(case: Case) -> None:
    script = ManagerScript(case["config"])
    for number, step in enumerate(case["steps"], start=1):
        assert script.run(step) == step.get("out", []), f"step {number}: {step}"


@pytest.mark.parametrize("case", ours("storm_windows.jsonl", "eviction"))
def test_eviction_policy_decides_as_storm_does(case: Case) -> None:
    config = case["config"]["evict"]
    policy = EVICTION[config["policy"]](config)
    now = 0
    for number, step in enumerate(case["steps"], start=1):
        now = step.get("now", now)
        out: list[dict[str, Any]] = []
        match step["op"]:
            case "context":
                policy.set_context(Firing(step["ref"], step.get("count"), step.get("slide_count", 0)))
            case "track":
                policy.track()
            case "track_watermark":
                pass  # a watermark is not an event here
            case "evict":
                out = [{"action": policy.evict(step["ts"], now).name}]
            case "reset":
                policy.reset()
            case "state":
                out = [{"state": storm_state(policy)}]
            case "restart":
                policy, old = EVICTION[config["policy"]](config), policy
                policy.restore(old.snapshot())
            case other:
                pytest.fail(f"unknown step {other}")
        assert out == step.get("out", []), f"step {number}: {step}"


@pytest.mark.parametrize("case", ours("storm_watermarks.jsonl", "generator"))
def test_watermark_generator_answers_as_storm_does(case: Case) -> None:
    generator = WatermarkEventGenerator(case["config"]["lag"], case["config"]["streams"])
    for number, step in enumerate(case["steps"], start=1):
        out: list[dict[str, Any]] = []
        if step["op"] == "track":
            out = [{"accepted": generator.track(step["stream"], step["ts"])}]
        elif (watermark := generator.tick()) is not None:
            out = [{"watermark": watermark}]
        assert out == step.get("out", []), f"step {number}: {step}"


def settings_of(config: dict[str, Any]) -> PolicySettings:
    """
    What `policy_window` is asked for by a Storm builder and its topology's configuration.

    Builder calls become arguments. An output is never named like our default, since naming one is a rule of
    its own.
    """
    asked: dict[str, Any] = {"time": "processing", "length": None}
    for call, *values in config["builder"]:
        match call:
            case "window" | "tumbling":
                asked["length"] = extent(values[0])
                asked["slide"] = extent(values[1]) if len(values) > 1 else None
                asked["tumbling"] = call == "tumbling"
            case "timestamp_field" | "timestamp_extractor":
                if asked["time"] == "event" or values[0] is None:
                    raise PipelineError("elements have one timestamp here, and they have it before they come")
                asked["time"] = "event"
            case "lag" | "watermark_interval":
                asked[call] = extent(values[0])
            case "late_stream":
                asked["late"] = values[0] and f"to {values[0]}"
            case "message_id_field" | "persistence":
                pass
            case other:
                pytest.fail(f"unknown builder call {other}")
    conf = {name.removeprefix("topology."): value for name, value in config["conf"].items()}
    for name, argument in (("length", "length"), ("sliding.interval", "slide")):
        if (ms := conf.get(f"bolts.window.{name}.duration.ms")) is not None:
            asked[argument] = timedelta(milliseconds=ms)
        if (number := conf.get(f"bolts.window.{name}.count")) is not None:
            asked[argument] = number
    outputs = [f"to {name}" for name in config.get("declared_streams", ())]
    return policy_settings(**asked, outputs=outputs)


def extent(value: dict[str, int] | None) -> int | timedelta | None:
    if value is None:
        return None
    if "count" in value:
        return value["count"]
    return timedelta(milliseconds=value["ms"]) if "ms" in value else timedelta(seconds=value["s"])


@pytest.mark.parametrize("case", ours("storm_windows.jsonl", "validation"))
def test_windows_are_refused_where_storm_refuses_them(case: Case) -> None:
    expect = case["expect"].get("ok")
    if expect is None:
        with pytest.raises(PipelineError):
            settings_of(case["config"])
        return
    settings = settings_of(case["config"])
    assert type(settings.eviction_policy()).__name__ + "Policy" == expect["eviction"]
    assert type(settings.trigger_policy()).__name__ == expect["trigger"]
    if settings.event_time:
        assert settings.watermark_interval_ms == expect["watermark_interval_ms"]
        assert settings.lag_ms == expect["lag_ms"]
        assert settings.late == (LATE if expect["late_stream"] is None else f"to {expect['late_stream']}")


class Recorder(Operator):
    """Logs what it is pushed, by means of the functions it is given."""

    def __init__(self, record: Callable[[Any, int | None], None], log: list[dict[str, Any]]) -> None:
        super().__init__()
        self.record = record
        self.log = log

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        for value, timestamp in pairs(values, timestamps):
            self.record(value, timestamp)


class Windows(Recorder):
    """Logs windows, and watermarks as Storm does."""

    def advance_watermark(self, timestamp: int) -> None:
        # Storm tells its watermark before the windows that it fires, and elements at it may still come
        self.log.insert(0, {"watermark": timestamp + 1})


class Batches(Operator):
    """Logs each batch that it is pushed as a list of ids."""

    def __init__(self, name: str, log: list[dict[str, Any]]) -> None:
        super().__init__()
        self.name = name
        self.log = log

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.log.append({self.name: [value["id"] for value in values]})


class BoltScript:
    """Drives a policy window operator as a case says; an element that expires is what Storm acknowledges."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.now = 0
        self.log: list[dict[str, Any]] = []
        settings = settings_of(config)
        sources = config.get("sources", ["s1"])
        self.operator = PolicyWindowOperator(
            replace(settings, streams=tuple(sources)), stream_of=lambda value: value["stream"]
        )
        self.settings = settings
        self.operator.out = Windows(self.window, self.log)
        self.operator.side = {settings.late: Recorder(self.late, self.log), EXPIRED: Batches("ack", self.log)}
        self.operator.open(OperatorContext(clock=self))

    def now_ms(self) -> int:
        return self.now

    def run(self, step: dict[str, Any]) -> list[dict[str, Any]]:
        self.log.clear()
        self.now = step.get("now", self.now)
        try:
            if step["op"] == "tuple":
                stamp = step.get("ts") if "ts" in self.config.get("fields", ["ts"]) else None
                element = {"id": step["id"], "ts": stamp, "stream": step.get("stream", "s1")}
                self.operator.process(element, None if stamp is None else instant_ms(stamp))
            else:
                if step["op"] == "tick":
                    self.now += self.settings.watermark_interval_ms
                self.operator.advance_clock(self.now)
        except (TypeError, UserFunctionError):  # a timestamp that is none
            self.log.append({"error": True})
        return list(self.log)

    def window(self, window: PolicyWindow, timestamp: int | None) -> None:
        lists = {name: [value["id"] for value in getattr(window, name)] for name in ("new", "expired")}
        members = [value["id"] for value in window.values]
        self.log.append({"window": members, **lists, "start": window.start_ms, "end": window.end_ms})
        assert timestamp == window.end_ms
        if self.config.get("emit"):
            self.log.append({"emit": [len(members)], "stream": "default", "anchors": members})
        if self.config.get("probe"):
            with pytest.raises(TypeError):
                iter(window)  # type: ignore[call-overload]
            self.log.append({"error": True})

    def late(self, element: dict[str, Any], timestamp: int | None) -> None:
        if self.settings.late != LATE:
            fields = {name: element[name] for name in ("id", "ts")}
            stream = self.settings.late.removeprefix("to ")
            anchors = [element["id"]]
            self.log.append({"late": fields, "from": element["stream"], "stream": stream, "anchors": anchors})
        self.log.append({"ack": [element["id"]]})


@pytest.mark.parametrize("case", ours("storm_windows.jsonl", "bolt"))
def test_operator_answers_as_storms_bolt_does(case: Case) -> None:
    script = BoltScript(case["config"])
    for number, step in enumerate(case["steps"], start=1):
        expected = [{"error": True} if "error" in out else out for out in step.get("out", [])]
        assert script.run(step) == expected, f"step {number}: {step}"
