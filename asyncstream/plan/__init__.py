"""The plan of a pipeline: its graph of steps, what is checked before it runs, and how it is described."""

from asyncstream.plan.describe import as_mermaid, as_text
from asyncstream.plan.graph import Graph, OperatorStep, Output, SinkStep, SourceStep, Step

__all__ = (
    "Graph",
    "OperatorStep",
    "Output",
    "SinkStep",
    "SourceStep",
    "Step",
    "as_mermaid",
    "as_text",
)
