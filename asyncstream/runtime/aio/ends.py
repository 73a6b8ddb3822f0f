"""
A graph, which serves one run at a time, and its sources and sinks, also where several pipelines have them.

Two jobs that read one source would each have a part of its elements, and the first that ends would close the
sink of the other.
"""

from __future__ import annotations

from asyncstream.operators.exclusive import give_back, take
from asyncstream.plan import Graph

__all__ = ("give_back_ends", "take_ends")


def take_ends(user: object, graph: Graph) -> None:
    """Have them serve `user` alone; raises `PipelineError` if one serves another, and takes none then."""
    try:
        for step, end in graph.ends():
            take(user, step, end)
        take(user, graph.name, graph)
    except BaseException:
        give_back_ends(user, graph)
        raise


def give_back_ends(user: object, graph: Graph) -> None:
    """Let others have those that serve `user`."""
    for _, end in graph.ends():
        give_back(user, end)
    give_back(user, graph)
