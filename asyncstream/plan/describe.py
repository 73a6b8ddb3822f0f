"""
A graph in words and as a picture (Mermaid).
"""

from __future__ import annotations

from asyncstream.plan.graph import Graph
from asyncstream.plan.guarantees import guarantees
from asyncstream.plan.steps import SinkStep, SourceStep, Step

__all__ = ("as_mermaid", "as_text", "settings_of")


def as_text(graph: Graph, title: str, *, checkpoints: bool = False) -> str:
    """
    One line for each step: its name, kind, what it reads, and its settings.

    Args:
        graph: the steps.
        title: what the pipeline is called.
        checkpoints: end with what holds on the way from each source to each sink if checkpoints are kept.
    """
    steps = list(graph)
    names = max((len(step.name) for step in steps), default=0)
    kinds = max((len(step.kind) for step in steps), default=0)
    lines = [f"pipeline {title!r}"]
    for step in steps:
        reads = " <- " + ", ".join(str(one.output) for one in step.inputs) if step.inputs else ""
        line = f"  {step.name:<{names}}  {step.kind:<{kinds}}{reads}"
        settings = ", ".join(settings_of(step))
        lines.append(f"{line}  ({settings})" if settings else line.rstrip())
    if checkpoints:
        lines.append("with checkpoints")
        lines += [f"  {guarantee}" for guarantee in guarantees(graph)]
    return "\n".join(lines)


def as_mermaid(graph: Graph) -> str:
    """
    A Mermaid flowchart, one node for each step; side outputs are dotted arrows with their tag.

    Args:
        graph: the steps of a pipeline.
    """
    steps = list(graph)
    ids = {step.name: f"s{number}" for number, step in enumerate(steps)}
    lines = ["flowchart LR"]
    for step in steps:
        label = _escape(step.name) + "".join(f"<br/>{_escape(text)}" for text in settings_of(step))
        before, after = _shape(step)
        lines.append(f'  {ids[step.name]}{before}"{label}"{after}')
    for step in steps:
        for source in (one.output for one in step.inputs):
            arrow = "-->" if source.tag is None else f"-. {_escape(source.tag, _IN_ARROWS)} .->"
            lines.append(f"  {ids[source.step]} {arrow} {ids[step.name]}")
    return "\n".join(lines)


def settings_of(step: Step) -> list[str]:
    """The settings of a step, as they are shown."""
    return [f"{name}={value}" for name, value in step.details.items() if value is not None]


def _shape(step: Step) -> tuple[str, str]:
    if isinstance(step, SourceStep):
        return "([", "])"
    if isinstance(step, SinkStep):
        return "[(", ")]"
    return ("[", "]") if step.spec.calls is None else ("[[", "]]")


_ESCAPES = str.maketrans(
    {"#": "#35;", "&": "&amp;", '"': "&quot;", "<": "&lt;", ">": "&gt;", "`": "#96;"}  # which begins Markdown
)
_IN_ARROWS = _ESCAPES | str.maketrans({".": "#46;"})  # which ends the text of a dotted one


def _escape(text: str, escapes: dict[int, str] = _ESCAPES) -> str:
    return text.translate(escapes)
