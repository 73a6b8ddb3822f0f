"""The plan of a pipeline: its graph of steps, what is checked before it runs, and how it is described."""

from asyncstream.plan.describe import as_mermaid, as_text
from asyncstream.plan.graph import Graph
from asyncstream.plan.guarantees import Guarantee, guarantees, left_behind
from asyncstream.plan.picture import as_html
from asyncstream.plan.places import check_places
from asyncstream.plan.steps import Input, OperatorStep, Output, SinkStep, SourceStep, Step
from asyncstream.plan.wiring import Wiring

__all__ = (
    "Graph",
    "Guarantee",
    "Input",
    "OperatorStep",
    "Output",
    "SinkStep",
    "SourceStep",
    "Step",
    "Wiring",
    "as_html",
    "as_mermaid",
    "as_text",
    "check_places",
    "guarantees",
    "left_behind",
)
