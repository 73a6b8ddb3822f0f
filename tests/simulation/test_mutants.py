"""
The simulation can fail: put one of these bugs into the package, and a story soon goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from asyncstream.async_wait import AsyncWaitOperator
from asyncstream.checkpoint import History
from asyncstream.checkpoint.chains import Chain
from asyncstream.checkpoint.segments import Compaction
from asyncstream.runtime.aio.checkpoints import Checkpointer
from asyncstream.runtime.aio.writing import SinkOperator
from asyncstream.state import Delta, Tables
from asyncstream.testing.simulation import SimulatedSink, SimulatedSource, SimulationFailed
from tests.simulation.scenarios import story, swept

WITHIN = 500
"""Seeds."""


pytestmark = pytest.mark.usefixtures("quiet")


Patch = Callable[[pytest.MonkeyPatch], None]


def a_call_in_flight_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    def snapshot(operator: AsyncWaitOperator, whole: Any = AsyncWaitOperator.snapshot) -> Any:
        state = whole(operator)
        calls = [entry for entry in state if entry[0] == "call"]
        return [entry for entry in state if entry not in calls[:1]]

    patch.setattr(AsyncWaitOperator, "snapshot", snapshot)


def a_finished_result_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    def snapshot(operator: AsyncWaitOperator, whole: Any = AsyncWaitOperator.snapshot) -> Any:
        return [entry for entry in whole(operator) if entry[0] != "finished"]

    patch.setattr(AsyncWaitOperator, "snapshot", snapshot)


def a_watermark_is_stored_too_high(patch: pytest.MonkeyPatch) -> None:
    def snapshot(operator: AsyncWaitOperator, whole: Any = AsyncWaitOperator.snapshot) -> Any:
        return [["watermark", e[1] + 2000] if e[0] == "watermark" else e for e in whole(operator)]

    patch.setattr(AsyncWaitOperator, "snapshot", snapshot)


def the_watermark_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def snapshot(operator: AsyncWaitOperator, whole: Any = AsyncWaitOperator.snapshot) -> Any:
        return [entry for entry in whole(operator) if entry[0] != "watermark"]

    patch.setattr(AsyncWaitOperator, "snapshot", snapshot)


def a_timer_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    def cut(tables: Tables, whole: Any = Tables.cut) -> Any:
        kept = whole(tables)
        for table, timers in kept.deltas.items():
            if table.name == "timers/event" and timers.rows:
                _, *others = timers.rows.items()
                lacking = Delta(dict(others), timers.gone, timers.dropped)
                return replace(kept, deltas={**kept.deltas, table: lacking})
        return kept

    patch.setattr(Tables, "cut", cut)


def what_is_gone_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    def init(
        delta: Delta, rows: Any, gone: Any = None, dropped: Any = (), whole: Any = Delta.__init__
    ) -> None:
        whole(delta, rows, None, ())

    patch.setattr(Delta, "__init__", init)


def what_changed_is_lost_with_a_checkpoint_that_failed(patch: pytest.MonkeyPatch) -> None:
    async def save(one: Checkpointer, number: int, finished: bool, whole: Any = Checkpointer._save) -> Any:
        kept = {
            step: {name: list(chain.parts) for name, chain in chains.items()}
            for step, chains in one.tables.chains.items()
        }
        try:
            return await whole(one, number, finished)
        except BaseException:
            one.tables.cuts.clear()
            for step, chains in one.tables.chains.items():
                for name, chain in chains.items():
                    chain.parts = kept.get(step, {}).get(name, [])
            raise

    patch.setattr(Checkpointer, "_save", save)


def a_delta_is_lost(patch: pytest.MonkeyPatch) -> None:
    def append(chain: Chain, chunks: list[bytes], whole: Any = Chain.append) -> None:
        if len(chain.parts) != 2:
            whole(chain, chunks)

    patch.setattr(Chain, "append", append)


def deltas_are_applied_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    def append(chain: Chain, chunks: list[bytes], whole: Any = Chain.append) -> None:
        whole(chain, chunks)
        base, changes = chain.parts[:1], chain.parts[1:]
        if len(changes) == 2:
            chain.parts = [*base, *reversed(changes)]

    patch.setattr(Chain, "append", append)


def what_is_compacted_forgets_what_was_gone(patch: pytest.MonkeyPatch) -> None:
    def feed(work: Compaction, chunks: Iterable[bytes], whole: Any = Compaction.feed) -> Any:
        return whole(work, [chunk for chunk in chunks if work._codec.decode(chunk)[0] == "rows"])

    patch.setattr(Compaction, "feed", feed)


def a_part_is_deleted_that_an_older_checkpoint_names(patch: pytest.MonkeyPatch) -> None:
    def named(history: History) -> set[str]:
        newest = history._infos[max(history._infos)] if history._infos else None
        return set() if newest is None else set(newest.stored)

    patch.setattr(History, "_named", named)


def the_source_is_a_step_ahead(patch: pytest.MonkeyPatch) -> None:
    def position(source: SimulatedSource, true: Any = SimulatedSource.position) -> Any:
        return true(source) + 1

    patch.setattr(SimulatedSource, "position", position)


def the_sink_commits_before_the_store_has_saved(patch: pytest.MonkeyPatch) -> None:
    async def prepared(sink: SinkOperator, epoch: int, prepare: Any = SinkOperator._prepared) -> Any:
        position = await prepare(sink, epoch)
        await sink.commit(epoch)
        return position

    patch.setattr(SinkOperator, "_prepared", prepared)


def a_commit_is_done_twice(patch: pytest.MonkeyPatch) -> None:
    async def recover(sink: SimulatedSink, position: Any, once: Any = SimulatedSink.recover) -> None:
        before = len(sink._disk.committed)
        staged = sink._disk.staged[: (position or 0) - before]
        await once(sink, position)
        if not sink._life.is_over:
            sink._disk.committed += staged

    patch.setattr(SimulatedSink, "recover", recover)


def an_epoch_is_cut_too_late(patch: pytest.MonkeyPatch) -> None:
    def cut(sink: SinkOperator, epoch: int, in_time: Any = SinkOperator.cut) -> Any:
        kept = sink._values, sink._timestamps
        sink._values, sink._timestamps = [], []
        position = in_time(sink, epoch)
        sink._values, sink._timestamps = kept
        return position

    patch.setattr(SinkOperator, "cut", cut)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("put_in", "first"),  # the seed to begin with: one by which it was caught
    [
        (a_call_in_flight_is_not_kept, 0),
        (a_finished_result_is_not_kept, 0),
        (a_watermark_is_stored_too_high, 0),
        (the_watermark_is_forgotten, 95),
        (a_timer_is_not_stored, 145),
        (what_is_gone_is_not_stored, 0),
        (what_changed_is_lost_with_a_checkpoint_that_failed, 0),
        (a_delta_is_lost, 0),
        (deltas_are_applied_in_the_wrong_order, 53),
        (what_is_compacted_forgets_what_was_gone, 53),
        (a_part_is_deleted_that_an_older_checkpoint_names, 0),
        (the_source_is_a_step_ahead, 0),
        (the_sink_commits_before_the_store_has_saved, 67),
        (a_commit_is_done_twice, 58),
        (an_epoch_is_cut_too_late, 512),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_bug_is_caught_when(put_in: Patch, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch)
    with pytest.raises(SimulationFailed, match=r"replay it with: python -m .* --seed \d+"):
        tell_all(first)


def tell_all(first: int) -> None:
    for seed in swept(range(first, first + WITHIN)):
        story(seed)
