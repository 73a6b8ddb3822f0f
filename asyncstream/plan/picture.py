"""
A graph as a picture in HTML, for notebooks: drawn here, so that it needs neither a script nor another host.

Steps stand in layers from left to right, each behind all that it reads. An arrow over several layers passes
through a place of its own in each, which is ordered with the steps, so that it goes around them. The order
within a layer follows the mean place of what is read, which keeps arrows from crossing in most cases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from asyncstream.plan.describe import settings_of
from asyncstream.plan.graph import Graph
from asyncstream.plan.steps import OperatorStep, Output, SinkStep, SourceStep, Step

__all__ = ("as_html",)

# pixels
CHARACTER = 7.0  # of the small text, in the widest of the usual fonts
LINE = 16.0
PADDING = 10.0
BETWEEN = 22.0  # two steps of a layer
GAP = 64.0  # two layers

MOST_CHARACTERS = 30
MOST_SETTINGS = 4


@dataclass(eq=False)
class _Place:
    """A step, with lines of text, or where an arrow passes a layer; and what it is reached from."""

    lines: list[str] = field(default_factory=list)
    before: list[_Place] = field(default_factory=list)
    layer: int = 0
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    step: Step | None = None

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + 2 * PADDING if self.lines else LINE


@dataclass
class _Arrow:
    """What a step reads; through which places it comes, both ends included."""

    output: Output
    path: list[_Place]


def as_html(graph: Graph, title: str) -> str:
    """
    A picture of the steps, with their settings; colours are those of the page.

    Args:
        graph: the steps.
        title: what the pipeline is called.
    """
    layers, arrows = _layers(graph)
    _arrange(layers)
    places = [place for layer in layers for place in layer]
    width = max((place.x + place.width for place in places), default=0.0) + 2
    height = max((place.y + place.height for place in places), default=0.0) + 2
    drawn = [_arrow(arrow) for arrow in arrows] + [_box(place) for place in places if place.step is not None]
    heading = f"pipeline {escape(title)}"
    return (
        f'<figure style="margin:0;overflow-x:auto"><figcaption><b>{heading}</b></figcaption>'
        f'<svg role="img" aria-label="{heading}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="-1 -1 {width:.0f} {height:.0f}" font-family="ui-monospace, monospace" font-size="11" '
        f'fill="currentColor" stroke="none">{"".join(drawn)}</svg></figure>'
    )


def _layers(graph: Graph) -> tuple[list[list[_Place]], list[_Arrow]]:
    places: dict[str, _Place] = {}
    layers: list[list[_Place]] = []
    arrows: list[_Arrow] = []

    def put(place: _Place) -> None:
        while len(layers) <= place.layer:
            layers.append([])
        layers[place.layer].append(place)

    for step in graph:  # each behind those that it reads
        place = _Place(_lines(step), step=step)
        outputs = [one.output for one in step.inputs]
        place.layer = max((places[output.step].layer + 1 for output in outputs), default=0)
        places[step.name] = place
        for output in outputs:
            path = [places[output.step]]
            for layer in range(path[0].layer + 1, place.layer):
                path.append(_Place(before=path[-1:], layer=layer))
                put(path[-1])
            place.before.append(path[-1])
            arrows.append(_Arrow(output, [*path, place]))
        put(place)
    return layers, arrows


def _lines(step: Step) -> list[str]:
    settings = settings_of(step)
    more = ["…"] if len(settings) > MOST_SETTINGS else []
    kind = [] if step.kind == step.name else [step.kind]
    return [step.name, *kind, *settings[:MOST_SETTINGS], *more]


def _arrange(layers: list[list[_Place]]) -> None:
    """Give every place its coordinates."""
    x, tallest = 0.0, max((_height(layer) for layer in layers), default=0.0)
    for layer in layers:
        layer.sort(key=lambda place: _mean([before.y + before.height / 2 for before in place.before]))
        longest = max((len(_short(line)) for place in layer for line in place.lines), default=0)
        width = longest * CHARACTER + 2 * PADDING if longest else 0.0
        y = (tallest - _height(layer)) / 2
        for place in layer:
            place.x, place.y, place.width = x, y, width
            y += place.height + BETWEEN
        x += width + GAP


def _height(layer: list[_Place]) -> float:
    return sum(place.height for place in layer) + BETWEEN * (len(layer) - 1)


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _box(place: _Place) -> str:
    step = place.step
    assert step is not None
    corner = 14 if isinstance(step, SourceStep | SinkStep) else 3
    shade = 0.18 if isinstance(step, OperatorStep) and step.spec.calls is not None else 0.06
    tip = "\n".join([step.name, step.kind, *settings_of(step)])
    texts = ""
    for number, line in enumerate(place.lines):
        weight = 'opacity="0.75"' if number else 'font-weight="bold"'
        y = place.y + PADDING + LINE * (number + 0.75)
        texts += f'<text x="{place.x + PADDING:.1f}" y="{y:.1f}" {weight}>{escape(_short(line))}</text>'
    return (
        f'<g><title>{escape(tip)}</title><rect x="{place.x:.1f}" y="{place.y:.1f}" width="{place.width:.1f}" '
        f'height="{place.height:.1f}" rx="{corner}" fill="currentColor" fill-opacity="{shade}" '
        f'stroke="currentColor" stroke-opacity="0.5"/>{texts}</g>'
    )


def _arrow(arrow: _Arrow) -> str:
    places = arrow.path
    start = places[0].x + places[0].width, places[0].y + places[0].height / 2
    path, (x, y) = f"M{start[0]:.1f},{start[1]:.1f}", start
    for place in places[1:]:
        middle, half = place.y + place.height / 2, (place.x - x) / 2
        path += f" C{x + half:.1f},{y:.1f} {x + half:.1f},{middle:.1f} {place.x:.1f},{middle:.1f}"
        x, y = place.x + (place.width if place is not places[-1] else 0), middle
        if place is not places[-1]:
            path += f" H{x:.1f}"
    tag = arrow.output.tag
    dashes = "" if tag is None else ' stroke-dasharray="4 3"'
    label = ""
    if tag is not None:
        label = (
            f'<text x="{start[0] + 6:.1f}" y="{start[1] - 5:.1f}" font-size="10">{escape(_short(tag))}</text>'
        )
    head = f"M{x - 7:.1f},{y - 4:.1f} L{x:.1f},{y:.1f} L{x - 7:.1f},{y + 4:.1f}"
    return f'<path d="{path} {head}" fill="none" stroke="currentColor" stroke-opacity="0.6"{dashes}/>{label}'
