from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest

from asyncstream import Items, PipelineError
from asyncstream.connectors import ListSink
from asyncstream.operators.exclusive import take
from asyncstream.operators.spec import Spec
from asyncstream.plan import Graph, Input, OperatorStep, Output, SinkStep, SourceStep


class Passes(Spec):
    """Of a step that passes elements on as they are."""

    def keeps_origins(self, tag: str | None) -> bool:
        return True


class Late(Spec):
    """Of a step that sends elements to its output `late`."""

    @property
    def required(self) -> tuple[str, ...]:
        return ("late",)


def graph() -> Graph:
    """source -> work (side output "late") -> sink"""
    graph = Graph()
    graph.add(SourceStep("source", Items([1])))
    graph.add(OperatorStep("work", "map", (Input(Output("source")),), Late()))
    graph.add(SinkStep("late sink", ListSink([]), (Input(Output("work", "late")),)))
    graph.add(SinkStep("sink", ListSink([]), (Input(Output("work")),)))
    return graph


def test_steps_are_in_topological_order_and_found_by_name() -> None:
    steps = graph()
    assert [step.name for step in steps] == ["source", "work", "late sink", "sink"]
    assert "work" in steps
    assert "nothing" not in steps
    assert steps["work"].kind == "map"


def test_outputs_are_those_that_somebody_reads_the_main_one_first() -> None:
    steps = graph()
    assert steps.outputs(steps["work"]) == [Output("work"), Output("work", "late")]
    assert steps.outputs(steps["sink"]) == []


def test_steps_behind_another_are_all_that_it_can_reach_each_once() -> None:
    steps = graph()
    steps.add(OperatorStep("union", "union", (Input(Output("work")), Input(Output("work", "late"))), Spec()))
    steps.add(SinkStep("united", ListSink([]), (Input(Output("union")),)))
    names = [step.name for step in steps.behind("source")]
    assert names == ["work", "late sink", "sink", "union", "united"]
    assert [step.name for step in steps.behind("union")] == ["united"]
    assert steps.behind("sink") == []


def test_reader_of_both_ends_of_one_stream_counts_twice() -> None:
    steps = graph()
    steps.add(OperatorStep("union", "union", (Input(Output("work")), Input(Output("work"))), Spec()))
    assert [step.name for step, _ in steps.ports(Output("work"))] == ["sink", "union", "union"]


def test_output_shows_step_and_tag() -> None:
    assert str(Output("work")) == "work"
    assert str(Output("work", "late")) == "work.late"


def test_names_come_from_kind_and_position_and_avoid_those_that_are_taken() -> None:
    steps = Graph()
    names = []
    for given in (None, "map-2", None, None, "own", None):
        name = steps.name_for("map", given)
        steps.add(OperatorStep(name, "map", (), Spec()))
        names.append(name)
    assert names == ["map", "map-2", "map-3", "map-4", "own", "map-6"]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("wrong", ["source", "", 5])
def test_wrong_names_are_refused(wrong: Any) -> None:
    with pytest.raises(PipelineError, match=r"^name: "):
        graph().name_for("map", wrong)


def test_whole_plan_passes() -> None:
    graph().check()


@pytest.mark.parametrize("copied", [deepcopy, lambda steps: pickle.loads(pickle.dumps(steps))])
def test_a_copy_has_ends_of_its_own(copied: Any) -> None:
    steps, run = graph(), graph()
    take(run, "run", steps)
    assert steps.in_use
    other = copied(steps)
    assert not other.in_use
    other.check()
    former, source = steps["source"], other["source"]
    assert isinstance(former, SourceStep)
    assert isinstance(source, SourceStep)
    with pytest.raises(PipelineError, match=r"steps 'source' and 'again' share one Items"):
        other.add(SourceStep("again", source.source))
    other.add(SourceStep("again", former.source))
    assert "again" not in steps


def test_plan_without_a_source_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"no source"):
        Graph().check()


@pytest.mark.parametrize(
    ("left_out", "message"),
    [("sink", "nobody reads step 'work'"), ("late sink", r"step 'work' sends elements to its output \.late")],
)
def test_plan_that_would_lose_elements_is_refused(left_out: str, message: str) -> None:
    whole, steps = graph(), Graph()
    for step in whole:
        if step.name != left_out:
            steps.add(step)
    with pytest.raises(PipelineError, match=message):
        steps.check()


@pytest.mark.parametrize(("width", "length"), [(1, 2_000), (2, 200)])
def test_origins_are_found_behind_many_steps_and_by_many_ways(width: int, length: int) -> None:
    steps = Graph()
    steps.add(SourceStep("0", Items([1])))
    for number in range(length):
        steps.add(OperatorStep(str(number + 1), "union", (Input(Output(str(number))),) * width, Passes()))
    steps.check_origins([Input(Output(str(length)))], argument="effect")


@pytest.mark.parametrize("output", [Output("work", "late"), Output("sink", "failed")])
def test_what_is_made_on_the_way_has_no_origin(output: Output) -> None:
    with pytest.raises(PipelineError, match=f"effect: .* those of '{output}' are made on the way"):
        graph().check_origins([Input(output)], argument="effect")
