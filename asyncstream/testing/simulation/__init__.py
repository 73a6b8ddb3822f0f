"""
Simulation: run a whole pipeline through crashes and restarts, and compare what comes out with a model.

    def make_pipeline(life: Life) -> Pipeline:  # your own: only the service is another
        return build(ask=life.unreliable(fake_service, 0.1))

    @pytest.mark.parametrize("seed", range(200))
    def test_my_pipeline(seed):
        simulate(make_pipeline, {"orders": ORDERS}, {"priced": expected}, seed)

What the pipeline's sources and sinks are does not matter: others stand in for them by their names, of this
world. Who has no model of what is to come out leaves it out: then a life in which nothing goes wrong tells. A
pipeline may also be built for a life with a `SimulatedSource` and a `SimulatedSink` of its own.

One seed is one story, told in the same words each time: see `world` for what is left to chance. For a
function of a seed: `python -m asyncstream.testing.simulation --story tests.mine:function --seed 123`.
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
