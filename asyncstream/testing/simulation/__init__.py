"""
Simulation: run a whole pipeline through crashes and restarts, and compare what comes out with a model.

    def make_pipeline(life: Life) -> Pipeline:
        async def enrich(event):
            await life.access("service", 0.1)  # takes a while, and fails one time in ten
            return {**event, "plane": event["tail"].lower()}

        pipeline = Pipeline()
        pipeline.source(SimulatedSource(life)).async_map(retry(enrich, random=life.random.random)).to(
            SimulatedSink(life)
        )
        return pipeline

    def test_my_pipeline():
        for seed in range(500):
            simulate(make_pipeline, events, expected, seed)

One seed is one story, told in the same words each time: see `world` for what is left to chance. The package's
own stories are in `scenarios`, and `python -m asyncstream.testing.simulation --seed 123` tells story 123.
"""

from asyncstream.testing.simulation.driver import Simulation, SimulationFailed, simulate
from asyncstream.testing.simulation.outside import (
    PlainSimulatedSink,
    SimulatedSink,
    SimulatedSource,
    SimulatedStore,
)
from asyncstream.testing.simulation.world import FaultPlan, Life, SimulatedFailure

__all__ = (
    "FaultPlan",
    "Life",
    "PlainSimulatedSink",
    "SimulatedFailure",
    "SimulatedSink",
    "SimulatedSource",
    "SimulatedStore",
    "Simulation",
    "SimulationFailed",
    "simulate",
)
