"""
Whether checkpoints can be taken of a graph, as asked before anything runs.
"""

from __future__ import annotations

from asyncstream.checkpoint import Checkpoints
from asyncstream.errors import PipelineError
from asyncstream.plan import Graph

__all__ = ("check_settings",)


def check_settings(settings: Checkpoints, graph: Graph) -> None:
    """
    See whether checkpoints can be taken of this graph, whose steps with state need names to find it by, and
    the settings are about its steps; raises `PipelineError` if not.
    """
    for new in settings.renamed.values():
        if new not in graph:
            raise PipelineError(f"renamed: the pipeline has no step {new!r}")
    for name in settings.migrate:
        if name not in graph:
            raise PipelineError(f"migrate: the pipeline has no step {name!r}")
        if graph[name].schema is None:
            raise PipelineError(f"migrate: step {name!r} remembers nothing that could be made to fit")
    unnamed = graph.unnamed_with_state()
    if unnamed:
        example = _EXAMPLES.get(graph[unnamed[0]].kind)
        raise PipelineError(
            f"checkpoints find the state of steps by name, and these steps have no name of their own: "
            f"{', '.join(map(repr, unnamed))}; give each a name="
            f"{f', e.g. {example},' if example else ''} that stays when the pipeline changes"
        )


_EXAMPLES = {
    "source": '.source(events, name="events")',
    "sink": '.to(sink, name="results")',
    "aggregate": '.aggregate(n=Count(), name="counts")',
}
"""How a step is given a name."""
