"""
Report a sensor that has said nothing for a minute: each reading sets an alarm, and takes back the last.

    python examples/timers.py
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["asyncstream"]
#
# [tool.uv.sources]
# asyncstream = { path = "..", editable = true }
# ///

from asyncstream import AscendingTimestamps, Emitter, KeyedContext, KeyedProcessFunction, Pipeline
from asyncstream.state import ValueDescriptor

READINGS = [(0, "door"), (20, "roof"), (50, "door"), (90, "door"), (130, "roof"), (140, "door")]
PATIENCE_S = 60


class Silence(KeyedProcessFunction[tuple[int, str], str]):
    def open(self, ctx: KeyedContext) -> None:
        self.alarm = ctx.state(ValueDescriptor[int]("alarm"))

    def process_element(self, reading: tuple[int, str], ctx: KeyedContext, out: Emitter[str]) -> None:
        if before := self.alarm.get():
            ctx.delete_event_timer(before)
        alarm_ms = (reading[0] + PATIENCE_S) * 1000
        ctx.register_event_timer(alarm_ms)
        self.alarm.set(alarm_ms)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[str]) -> None:
        out(f"second {timestamp // 1000}: nothing from the {ctx.key} for {PATIENCE_S} s")


def main() -> None:
    pipeline = Pipeline("sensors")
    readings = pipeline.source(READINGS).event_time(lambda reading: reading[0] * 1000, AscendingTimestamps())
    readings.key_by(lambda reading: reading[1]).process(Silence()).to(print)
    pipeline.run_blocking()


if __name__ == "__main__":
    main()
