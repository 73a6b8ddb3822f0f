"""What travels with every task is unpickled once in each worker, and accumulators count in every task."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from ssl import create_default_context
from types import ModuleType
from typing import Any

import pytest
from pyspark import accumulators, cloudpickle
from pyspark.accumulators import Accumulator, AddingAccumulatorParam
from pyspark.serializers import CloudPickleSerializer

from asyncstream import KeyedProcessFunction, Pipeline, PipelineError, Stream
from asyncstream.connectors.http import HttpLookup
from asyncstream.runtime.spark.stages import stages_of
from asyncstream.runtime.spark.worker import shipped
from asyncstream.runtime.spark.worker.shipped import MOST, Shipped, sending


@pytest.fixture(autouse=True)
def _worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(shipped, "_worker", OrderedDict())
    before = dict(accumulators._accumulatorRegistry)
    yield
    accumulators._accumulatorRegistry.clear()
    accumulators._accumulatorRegistry.update(before)


def with_task(function: Any) -> Any:
    """What a task of a worker is given."""
    return cloudpickle.loads(cloudpickle.dumps(function))


def counting(start: int) -> Any:
    numbers = Shipped([start])

    def next_number() -> int:
        numbers.value[0] += 1
        return numbers.value[0]

    return next_number


def test_all_tasks_of_a_worker_have_one_copy() -> None:
    function = counting(0)
    assert [with_task(function)() for _ in range(3)] == [1, 2, 3]
    assert function() == 1
    assert with_task(counting(10))() == 11


def test_a_worker_keeps_what_was_used_last() -> None:
    functions = [counting(1_000 * number) for number in range(MOST + 1)]
    for function in functions[:MOST]:
        with_task(function)()
    with_task(functions[0])()
    with_task(functions[MOST])()
    assert with_task(functions[0])() == 3
    assert with_task(functions[1])() == 1_001


def test_a_worker_does_not_keep_what_is_not_to_stay() -> None:
    sent = cloudpickle.dumps(Shipped([0], stays=False))
    first, second = cloudpickle.loads(sent).value, cloudpickle.loads(sent).value
    assert first == second == [0]
    assert first is not second
    assert not shipped._worker


def test_an_accumulator_counts_for_each_task() -> None:
    total: Accumulator[int] = Accumulator(977, 0, AddingAccumulatorParam(0))
    pickled = cloudpickle.dumps(Shipped(lambda count: total.add(count)))
    for count in (3, 4):
        accumulators._accumulatorRegistry.clear()  # as a worker does before each task
        add = cloudpickle.loads(pickled).value
        add(count)
        add(count)
        found = {number: one._value for number, one in accumulators._accumulatorRegistry.items()}
        assert found == {977: 2 * count}


class Locked(KeyedProcessFunction[Any, Any]):
    lock: Any = None

    def process_element(self, value: Any, ctx: Any, out: Any) -> None: ...


def locking(key: bool) -> Any:
    """A pipeline of which a key function, or a process function, has a lock."""
    lock, function = threading.Lock(), Locked()
    if not key:
        function.lock = lock
    pipeline = Pipeline()
    rows: Stream[Any] = pipeline.source([], name="rows").map(dict, name="before")
    keyed = rows.key_by((lambda row: (row, lock)) if key else "key")
    keyed.process(function, name="locked").to([], name="out")
    return pipeline._graph


@pytest.mark.parametrize("key", [True, False])
def test_step_that_cannot_be_pickled_is_named(key: bool) -> None:
    first, second = stages_of(locking(key), streaming=True)[:2]
    with pytest.raises(
        Exception, match=r"step 'locked' cannot be sent to Spark's workers: TypeError: .*lock"
    ):
        cloudpickle.dumps(Shipped(first if key else second, stage=first if key else second))
    with pytest.raises(TypeError, match="cannot pickle"):  # of something else than a step
        cloudpickle.dumps(Shipped([threading.Lock()], stage=stages_of(Pipeline()._graph, streaming=True)[0]))


def test_step_that_cannot_be_pickled_is_refused_in_our_words_only() -> None:
    stage = stages_of(locking(True), streaming=True)[0]
    for value in (Shipped(stage, stage=stage), [threading.Lock()]):
        with pytest.raises(Exception, match="cannot pickle") as caught, sending():
            CloudPickleSerializer().dumps(value)
        assert isinstance(caught.value, PipelineError) == isinstance(value, Shipped)


def test_client_of_a_lookup_that_stays_in_its_process_is_refused_with_ways_out() -> None:
    def sent(client: Any) -> bytes:
        lookup: Any = HttpLookup("http://planes.example/{key}", client=client)
        pipeline = Pipeline()
        pipeline.source([], name="rows").async_map(lookup, name="planes").to([], name="out")
        stage = stages_of(pipeline._graph, streaming=False)[0]
        return cloudpickle.dumps(Shipped(stage, stage=stage))  # type: ignore[no-any-return]

    assert sent(None)
    assert sent({"trust_env": True})
    with pytest.raises(PipelineError, match=r"step 'planes' cannot be sent .*: client: .* SSL_CERT_FILE"):
        sent({"ssl": create_default_context()})


def test_module_that_a_worker_does_not_have_is_named_with_the_ways_to_send_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    helpers: Any = ModuleType("helpers_of_mine")
    exec("def key(row): ...", vars(helpers))
    monkeypatch.setitem(sys.modules, helpers.__name__, helpers)
    sent = cloudpickle.dumps(Shipped(helpers.key))
    monkeypatch.delitem(sys.modules, helpers.__name__)
    with pytest.raises(PipelineError, match=r"has no module 'helpers_of_mine', .* spark\.addArtifacts\(path"):
        cloudpickle.loads(sent)
