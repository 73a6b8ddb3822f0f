"""
A slow, obvious model of Storm's windowing, in which each rule that is another here can be left out.

With all of Storm's rules it gives every recorded answer; with ours it says what must come out where Storm's
answer rests on a rule that the table in `docs/coming-from.md` decides otherwise. It shares nothing with the
package: one list of events, scanned as a whole whenever a window ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

STORM: Final = frozenset(
    {"stop-scan", "expired-drop", "compaction", "timers", "starts-at-0", "count-gap", "undeclared-stream"}
)
"""
Storm's rules that are not ours, as in `needs` of a case; `timers` for three that are one here:
`clock-minus-1`, `first-window` and `drift`.
"""

OURS: Final[frozenset[str]] = frozenset()

Out = list[dict[str, Any]]

_FIRST_WINDOW_MS: Final = 2**31 - 1
"""By how much the first window of a timer is longer in Storm."""


@dataclass(eq=False)
class Held:
    """An event in the queue, and what windows have made of it."""

    id: Any
    ts: int
    seen: bool = False
    in_last: bool = False


class EvictionModel:
    """One eviction policy: what becomes of the next event."""

    def __init__(self, config: dict[str, Any], rules: frozenset[str]) -> None:
        self.config, self.rules = config, rules
        self.now = 0
        self.build()

    def build(self) -> None:
        config = self.config["evict"]
        self.kind = config["policy"]
        self.length = config.get("n") or config["ms"]
        self.lag = config.get("lag", _FIRST_WINDOW_MS)
        self.ref: int | None = None
        self.slide_ms: int | None = None
        self.delta = 0
        self.current = self.processed = 0

    def run(self, step: dict[str, Any]) -> Out:
        self.now = step.get("now", self.now)
        match step["op"]:
            case "context":
                rest = (step.get(name) for name in ("count", "slide_count", "slide_ms"))
                self.context(step["ref"], *rest)
            case "track":
                self.track()
            case "evict":
                return [{"action": self.evict(step["ts"], self.now)}]
            case "reset":
                self.reset()
            case "state":
                return [{"state": self.state()}]
            case "restart":
                old = EvictionModel(self.config, self.rules)
                old.restored(self)
                self.build()
                self.restored(old)
        return []

    def track(self) -> None:
        if self.kind == "count":
            self.current += 1

    def context(
        self, ref: int, count: int | None = None, slide_count: int | None = None, slide_ms: int | None = None
    ) -> None:
        before, self.ref, self.slide_ms = self.ref, ref, slide_ms
        if self.kind == "wm_count":
            self.current = self.processed + (slide_count or 0) if count is None else count
            self.processed = 0
        elif slide_ms is not None and "timers" in self.rules:
            self.delta = _FIRST_WINDOW_MS if before is None else ref - before - slide_ms

    def evict(self, ts: int, now: int) -> str:
        if self.ref is None and self.kind.startswith("wm"):
            return "STOP"
        before = (now if self.ref is None else self.ref) - ts
        if self.kind.endswith("count"):
            if self.kind == "wm_count" and (before < 0 or self.processed >= self.current):
                return "KEEP"
            if self.current > self.length:
                self.current -= 1
                return "EXPIRE"
            self.processed += 1
            return "PROCESS"
        if self.kind == "wm_time" and "stop-scan" in self.rules and before < -self.lag:
            return "STOP"
        if before >= self.length + self.delta:
            return "EXPIRE"
        return "KEEP" if before < 0 else "PROCESS"

    def reset(self) -> None:
        self.processed = 0

    def state(self) -> Any:
        if self.kind == "count":
            return self.current
        if self.kind == "wm_count":
            return [self.current, self.processed]
        slide_ms = self.slide_ms if "timers" in self.rules else None  # it serves the drift alone
        return None if self.ref is None else {"ref": self.ref, "slide_ms": slide_ms}

    def restored(self, old: EvictionModel) -> None:
        self.current, self.processed = old.current, old.processed if self.kind == "wm_count" else 0
        if self.kind in ("time", "wm_time"):
            self.ref, self.slide_ms = old.ref, old.slide_ms


class ManagerModel:
    """A window manager with its two policies."""

    def __init__(self, config: dict[str, Any], rules: frozenset[str]) -> None:
        self.config, self.rules = config, rules
        self.now = 0
        self.out: Out = []
        self.held: list[Held] = []
        self.build(config.get("start", True))

    def build(self, started: bool) -> None:
        self.started = started
        self.eviction = EvictionModel(self.config, self.rules)
        self.slide = self.config["trigger"].get("n") or self.config["trigger"]["ms"]
        self.kind = self.config["trigger"]["policy"]
        self.count = 0
        # of the next window, or of the last that a count slide has ended
        self.end: int | None = 0 if "starts-at-0" in self.rules and self.by_watermark else None
        self.expired: list[Held] = []
        self.added = 0

    @property
    def by_watermark(self) -> bool:
        return self.kind in ("wm_count", "wm_time")

    # ---------------------------------------------------------------- steps

    def run(self, step: dict[str, Any]) -> Out:
        self.out = []
        self.now = step.get("now", self.now)
        getattr(self, "do_" + step["op"])(step)
        return self.out

    def do_add(self, step: dict[str, Any]) -> None:
        self.held.append(Held(step["id"], step.get("ts", self.now)))
        self.eviction.track()
        if self.started and self.kind == "count":
            self.count += 1
            if self.count >= self.slide:
                self.eviction.context(self.now)
                self.fire()
        self.compact()

    def do_watermark(self, step: dict[str, Any]) -> None:
        if self.started and self.kind == "wm_time":
            self.advance(step["ts"])
        elif self.started and self.kind == "wm_count":
            self.count_until(step["ts"])
        if "compaction" in self.rules:
            self.compact()

    def do_timer(self, step: dict[str, Any]) -> None:
        if not self.started:
            return
        if "timers" not in self.rules:
            self.advance(self.now - 1)
        else:
            self.eviction.context(self.now - 1, slide_ms=self.slide)
            self.fire()

    def do_trigger(self, step: dict[str, Any]) -> None:
        self.eviction.context(step["ref"])
        self.out.append({"fired": self.fire()})

    def do_start(self, step: dict[str, Any]) -> None:
        self.started = True

    def do_state(self, step: dict[str, Any]) -> None:
        trigger = {"count": self.count, "time": None}.get(self.kind, self.end or 0)
        self.out.append({"state": {"evict": self.eviction.state(), "trigger": trigger}})

    def do_queue(self, step: dict[str, Any]) -> None:
        self.out.append({"queue": [event.id for event in self.held]})

    def do_restart(self, step: dict[str, Any]) -> None:
        eviction, count, end = self.eviction, self.count, self.end
        self.held = [Held(event.id, event.ts) for event in self.held if step.get("keep_queue")]
        self.build(started=True)
        if step.get("restore"):
            self.eviction.restored(eviction)
            self.count, self.end = count, end

    # ---------------------------------------------------------------- what ends windows

    def advance(self, time: int) -> None:
        """A time slide: `time` is reached."""
        end = self.aligned(None, time) if self.end is None else self.end
        while end is not None and end <= time:
            has_new = any(event.ts <= end and not event.seen for event in self.held)
            if "count-gap" in self.rules or has_new or self.eviction.kind not in ("count", "wm_count"):
                self.eviction.context(end, sum(event.ts <= end for event in self.held))
                fired = self.fire()
                self.end = end + self.slide if fired else end
            else:
                fired = False
            end = self.end if fired else self.aligned(end, time)
        if end is not None and "starts-at-0" in self.rules:
            self.end = end

    def aligned(self, after: int | None, until: int) -> int | None:
        """The first multiple of the slide that is not before the earliest event between the two times."""
        between = [e.ts for e in self.held if (after is None or e.ts > after) and e.ts <= until]
        return -(-min(between) // self.slide) * self.slide if between else None

    def count_until(self, watermark: int) -> None:
        """A count slide in event time."""
        after = self.end
        ends: list[int] = []
        between = [e.ts for e in self.held if (after is None or e.ts > after) and e.ts <= watermark]
        for number in range(self.slide, len(between) + 1, self.slide):
            ends.append(max(between[:number]))
        for end in ends:
            self.eviction.context(end, slide_count=self.slide)
            self.fire()
            self.end = end

    # ---------------------------------------------------------------- windows

    def fire(self) -> bool:
        expired, window = [], []
        for event in list(self.held):
            action = self.eviction.evict(event.ts, self.now)
            if action == "STOP":
                break
            if action == "EXPIRE":
                expired.append(event)
            elif action == "PROCESS":
                window.append(event)
        self.added = self.count = 0
        self.expire(expired)
        if window:
            new = [event for event in window if not event.in_last]
            self.told(window, new, self.expired)
            self.expired = []
        elif "expired-drop" in self.rules:
            self.expired = []
        else:
            self.expired = [event for event in self.expired if event.seen]
        for event in self.held:
            event.in_last = event in window
            event.seen = event.seen or event.in_last
        return bool(window)

    def expire(self, expired: list[Held]) -> None:
        if expired:
            self.held = [event for event in self.held if event not in expired]
            self.expired += expired
            self.out.append({"expire": [event.id for event in expired]})

    def told(self, window: list[Held], new: list[Held], expired: list[Held]) -> None:
        lists = {"window": window, "new": new, "expired": expired}
        ids = {name: [event.id for event in events] for name, events in lists.items()}
        self.out.append({**ids, "ref": self.eviction.ref})

    def compact(self) -> None:
        if "compaction" not in self.rules and self.eviction.kind.startswith("wm"):
            return
        self.added += 1
        if self.added < 100:
            return
        self.added = 0
        expired = []
        for event in self.held:
            if self.eviction.evict(event.ts, self.now) != "EXPIRE":
                break
            expired.append(event)
        self.expire(expired)


class GeneratorModel:
    """The watermark of several streams."""

    def __init__(self, config: dict[str, Any], rules: frozenset[str]) -> None:
        self.lag, self.streams, self.rules = config["lag"], config["streams"], rules
        self.highest: dict[str, int] = {}
        self.watermark = 0 if "starts-at-0" in rules else -(2**63)

    def run(self, step: dict[str, Any]) -> Out:
        if step["op"] == "track":
            return [{"accepted": self.track(step["stream"], step["ts"])}]
        watermark = self.tick()
        return [] if watermark is None else [{"watermark": watermark}]

    def track(self, stream: str, ts: int) -> bool:
        if stream in self.streams or "undeclared-stream" in self.rules:
            self.highest[stream] = max(ts, self.highest.get(stream, ts))
        return ts >= self.watermark

    def tick(self) -> int | None:
        lowest = min(self.highest.values(), default=2**63 - 1)
        if len(self.highest) < len(self.streams):
            if "starts-at-0" not in self.rules:
                return None
            lowest = 0
        if lowest - self.lag <= self.watermark:
            return None
        self.watermark = lowest - self.lag
        return self.watermark


class BoltModel:
    """A whole windowed bolt: tuples in; windows, late ones and acknowledgements out."""

    def __init__(self, config: dict[str, Any], rules: frozenset[str]) -> None:
        self.config, self.rules = config, rules
        self.now = 0
        asked = {call: values for call, *values in config["builder"]}
        self.by_event_time = "timestamp_field" in asked
        length, *slide = asked.get("window") or asked["tumbling"] * 2
        lag = _ms(asked["lag"][0]) if "lag" in asked else 0
        self.length_ms = None if "count" in length else _ms(length)
        self.late_stream = asked.get("late_stream", [None])[0]
        self.generator = GeneratorModel({"lag": lag, "streams": config.get("sources", ["s1"])}, rules)
        evict, trigger = self.policy(length), self.policy(slide[0] if slide else {"count": 1})
        self.manager = ManagerModel({"evict": {**evict, "lag": lag}, "trigger": trigger}, rules)

    def policy(self, extent: dict[str, int]) -> dict[str, Any]:
        kind = "count" if "count" in extent else "time"
        unit = "n" if kind == "count" else "ms"
        value = extent["count"] if kind == "count" else _ms(extent)
        return {"policy": "wm_" * self.by_event_time + kind, unit: value}

    def run(self, step: dict[str, Any]) -> Out:
        self.now = step.get("now", self.now)
        if step["op"] == "tick":
            watermark = self.generator.tick() if self.by_event_time else None
            if watermark is None:
                return []
            return [{"watermark": watermark}, *self.told({"op": "watermark", "ts": watermark})]
        if step["op"] == "timer":
            return self.told({"op": "timer"}) if self.manager.kind == "time" else []
        if not self.by_event_time:
            out = []
            if "timers" not in self.rules and self.manager.kind == "time":
                out = self.told({"op": "timer"})  # windows that have ended do not wait for their timer
            return out + self.told({"op": "add", "id": step["id"]})
        if not isinstance(step.get("ts"), int) or "ts" not in self.config.get("fields", ["ts"]):
            return [{"error": True}]
        if self.generator.track(step.get("stream", "s1"), step["ts"]):
            return self.told({"op": "add", "id": step["id"], "ts": step["ts"]})
        out = [{"ack": [step["id"]]}]
        if self.late_stream is not None:
            late = {
                "late": {"id": step["id"], "ts": step["ts"]},
                "from": step.get("stream", "s1"),
                "stream": self.late_stream,
                "anchors": [step["id"]],
            }
            out.insert(0, late)
        return out

    def told(self, step: dict[str, Any]) -> Out:
        """What the manager says to a step, as a bolt and its topology hear of it."""
        out: Out = []
        for said in self.manager.run({"now": self.now, **step}):
            if "expire" in said:
                out.append({"ack": said["expire"]})
                continue
            end = said.pop("ref")
            start = None if self.length_ms is None else end - self.length_ms
            out.append({**said, "start": start, "end": end})
            if self.config.get("emit"):
                members = said["window"]
                out.append({"emit": [len(members)], "stream": "default", "anchors": members})
            if self.config.get("probe"):
                out.append({"error": True})
        return out


def _ms(extent: dict[str, int]) -> int:
    return extent["ms"] if "ms" in extent else extent["s"] * 1000
