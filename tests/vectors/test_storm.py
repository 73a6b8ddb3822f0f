"""
Storm's window policies, case by case: what `WindowManager`, the policies, the watermark generator and
the operator answer is what Storm's own classes answered.

Where the outcome rests on a rule that the table in `docs/coming-from.md` decides otherwise (`holds_for_us`),
it is what a model of Storm answers without these rules; with them the model gives all that was recorded.
Of windows that Storm keeps on disk, the windows are compared. Left out: recovery by message ids, which
snapshots replace, and what Storm refuses for its own reasons.
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
from asyncstream.windowing import LATE
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
from asyncstream.windowing.policies.settings import PolicySettings, policy_settings
from asyncstream.windowing.policies.trigger import (
    CountTriggerPolicy,
    TimeTriggerPolicy,
    TriggerPolicy,
    WatermarkCountTriggerPolicy,
    WatermarkTimeTriggerPolicy,
)
from asyncstream.windowing.policies.watermark import WatermarkEventGenerator
from tests.vectors.cases import FOLDER, Case, cases
from tests.vectors.storm_model import OURS, STORM, BoltModel, EvictionModel, GeneratorModel, ManagerModel

FILES = ("storm_windows.jsonl", "storm_watermarks.jsonl", "storm_more.jsonl")

SAME_AS_STORM = {"arrival-order"}
"""The debatable rules in which we follow Storm; a case that needs another one is held by the model alone."""

SAME_WITH_A_CLOCK = SAME_AS_STORM | {"compaction"}
"""The same for cases in processing time, which has no watermarks."""

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
    has_watermarks = any(step["op"] == "watermark" for step in case.get("steps", ()))
    is_by_clock = not case.get("combo", "wm").startswith("wm") and not has_watermarks
    same = SAME_WITH_A_CLOCK if is_by_clock else SAME_AS_STORM
    return set(case.get("needs", ())) <= same and "quirk" not in case.get("tags", ())


def holds_for_our_windows(case: Case) -> bool:
    """Of windows kept on disk, which are compacted here, and have no calls that might come amiss."""
    steps = [step["op"] for step in case["steps"]]
    if case["kind"] == "manager_persistent":
        return holds_for_us(case) and "compaction" not in case.get("tags", ())
    return holds_for_us(case) and steps.index("init_state") == 0 and "watermark" not in steps


def ours(file: str, kind: str, holds: Callable[[Case], bool] = holds_for_us) -> list[Any]:
    return [param for param in cases(file, kind) if holds(param.values[0])]


def scripted(holds: Callable[[Case], bool] = lambda case: True) -> list[Any]:
    """The cases of all kinds that a model has."""
    kinds = ("manager", "eviction", "bolt", "generator")
    return [param for file in FILES for kind in kinds for param in ours(file, kind, holds)]


@pytest.mark.once
def test_readme_says_how_many_cases_there_are_and_how_many_are_ours() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    all_of_storm = sum(len((FOLDER / file).read_text(encoding="utf-8").splitlines()) for file in FILES)
    as_recorded = len(scripted(holds_for_us)) + len(ours("storm_windows.jsonl", "validation"))
    as_recorded += len(persisted("manager_persistent")) + len(persisted("persistent"))
    by_model = len(scripted(lambda case: not holds_for_us(case)))
    flink = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in FOLDER.glob("flink_*.jsonl"))
    assert f"has {flink:,} cases recorded from Flink" in readme
    assert f"{all_of_storm} from Storm: {as_recorded} are held as recorded, {by_model} by a model" in readme


def persisted(kind: str) -> list[Any]:
    return ours("storm_windows.jsonl", kind, holds_for_our_windows)


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


class EvictionScript:
    """Drives one eviction policy as a case says."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config["evict"]
        self.policy = EVICTION[self.config["policy"]](self.config)
        self.now = 0

    def run(self, step: dict[str, Any]) -> list[dict[str, Any]]:
        self.now = step.get("now", self.now)
        match step["op"]:
            case "context":
                firing = Firing(step["ref"], step.get("count"), step.get("slide_count", 0))
                self.policy.set_context(firing)
            case "track":
                self.policy.track()
            case "track_watermark":
                pass  # a watermark is not an event here
            case "evict":
                return [{"action": self.policy.evict(step["ts"], self.now).name}]
            case "reset":
                self.policy.reset()
            case "state":
                return [{"state": storm_state(self.policy)}]
            case "restart":
                self.policy, old = EVICTION[self.config["policy"]](self.config), self.policy
                self.policy.restore(old.snapshot())
            case other:
                pytest.fail(f"unknown step {other}")
        return []


class GeneratorScript:
    """Drives a watermark generator as a case says."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.generator = WatermarkEventGenerator(config["lag"], config["streams"])

    def run(self, step: dict[str, Any]) -> list[dict[str, Any]]:
        if step["op"] == "track":
            return [{"accepted": self.generator.track(step["stream"], step["ts"])}]
        watermark = self.generator.tick()
        return [] if watermark is None else [{"watermark": watermark}]


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
        self.settings = replace(settings, streams=tuple(config.get("sources", ["s1"])))
        self.open()

    def open(self) -> None:
        self.operator = PolicyWindowOperator(self.settings, stream_of=lambda value: value["stream"])
        self.operator.out = Windows(self.window, self.log)
        late = Recorder(self.late, self.log)
        self.operator.side = {self.settings.late: late, EXPIRED: Batches("ack", self.log)}
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

    def window(self, window: PolicyWindow[Any], timestamp: int | None) -> None:
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


SCRIPTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "manager": ManagerScript,
    "eviction": EvictionScript,
    "generator": GeneratorScript,
    "bolt": BoltScript,
}
MODELS: dict[str, Callable[[dict[str, Any], frozenset[str]], Any]] = {
    "manager": ManagerModel,
    "eviction": EvictionModel,
    "generator": GeneratorModel,
    "bolt": BoltModel,
}


def recorded(step: dict[str, Any]) -> list[dict[str, Any]]:
    """What Storm answered; an error is one whatever it is called."""
    return [{"error": True} if "error" in out else out for out in step.get("out", [])]


def acks_joined(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of two firings in a row, the first of them empty, as one."""
    joined: list[dict[str, Any]] = []
    for out in told:
        if "ack" in out and joined and "ack" in joined[-1]:
            joined[-1] = {"ack": joined[-1]["ack"] + out["ack"]}
        else:
            joined.append(out)
    return joined


@pytest.mark.parametrize("case", scripted(holds_for_us))
def test_answers_as_storm_does(case: Case) -> None:
    script = SCRIPTS[case["kind"]](case["config"])
    for number, step in enumerate(case["steps"], start=1):
        assert script.run(step) == recorded(step), f"step {number}: {step}"


@pytest.mark.parametrize("case", scripted())
def test_model_answers_as_storm_does(case: Case) -> None:
    model = MODELS[case["kind"]](case["config"], STORM)
    for number, step in enumerate(case["steps"], start=1):
        assert acks_joined(model.run(step)) == recorded(step), f"step {number}: {step}"


@pytest.mark.parametrize("case", scripted(lambda case: not holds_for_us(case)))
def test_answers_as_storm_would_by_our_rules(case: Case) -> None:
    if case["kind"] == "generator" and not case["config"]["streams"]:
        with pytest.raises(PipelineError):  # in Storm nothing is waited for: the watermark is the end of time
            GeneratorScript(case["config"])
        return
    script = SCRIPTS[case["kind"]](case["config"])
    model = MODELS[case["kind"]](case["config"], OURS)
    for number, step in enumerate(case["steps"], start=1):
        assert acks_joined(script.run(step)) == acks_joined(model.run(step)), f"step {number}: {step}"


def windows_of(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Which windows there were and what else a persisted one shows: no new and no expired list."""
    names = ("window", "start", "end", "ref", "state", "queue")
    shown = [{name: out[name] for name in names if name in out} for out in told]
    return [out for out in shown if out]


@pytest.mark.parametrize("case", persisted("manager_persistent"))
def test_windows_are_those_that_storm_keeps_on_disk(case: Case) -> None:
    script = ManagerScript(case["config"])
    for number, step in enumerate(case["steps"], start=1):
        assert windows_of(script.run(step)) == windows_of(recorded(step)), f"step {number}: {step}"


@pytest.mark.parametrize("case", persisted("persistent"))
def test_windows_are_those_that_storm_keeps_on_disk_through_crashes(case: Case) -> None:
    script = BoltScript(case["config"])
    prepared = committed = script.operator.snapshot()
    for number, step in enumerate(case["steps"], start=1):
        match step["op"]:
            case "pre_prepare":
                prepared = script.operator.snapshot()
            case "pre_commit":
                committed = prepared
            case "restart" | "pre_rollback":
                script.open()
                script.operator.restore(committed)
            case "init_state" | "state":
                pass  # how the policies count is theirs, and held by the kinds above
            case _:
                assert windows_of(script.run(step)) == windows_of(recorded(step)), f"step {number}: {step}"
