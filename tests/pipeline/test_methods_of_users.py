"""What users write as a class is looked at when the pipeline is built: its methods, and what they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, partialmethod, wraps
from typing import Any
from unittest.mock import AsyncMock, MagicMock, create_autospec

import pytest

from asyncstream import (
    AsyncFunction,
    Checkpoints,
    DeadLetterSource,
    JsonLinesSource,
    MemoryStore,
    Pipeline,
    PipelineError,
    Sink,
    Source,
    SourceBatch,
    SourceError,
    TransactionalSink,
)
from asyncstream.guards import Breaker, batched, circuit_breaker, rate_limit, retry


async def fetch(value: int) -> int:
    return value


def made(base: type, **methods: Any) -> Any:
    """An object of a class below `base` with these methods, and what that leaves to others."""
    rest: dict[str, Any] = dict.fromkeys(getattr(base, "__abstractmethods__", ()), _none)
    if base in (Sink, TransactionalSink):
        rest["write_batch"] = _one
    elif base is AsyncFunction:
        rest["invoke"] = _one
    return type("Mine", (base,), rest | methods)()


async def _none(self: Any, *_: Any) -> None:
    return None


async def _one(self: Any, value: Any) -> Any:
    return value


def plain(self: Any) -> None:
    return None


async def of_no_argument(self: Any) -> None:
    return None


async def yielding(self: Any) -> Any:
    yield SourceBatch([1])


async def asked(self: Any) -> int:
    return 1


def source(**methods: Any) -> object:
    return Pipeline().source(made(Source, **methods))


def sink(base: type = Sink, **methods: Any) -> object:
    return Pipeline().source([1]).to(made(base, **methods))


def called(**methods: Any) -> object:
    return Pipeline().source([1]).async_map(made(AsyncFunction, **methods))


def guarded(**methods: Any) -> object:
    return retry(made(AsyncFunction, **methods))


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "read, plain": (lambda: source(read=plain), "source.read: expected an async def, got"),
    "read, yielding": (lambda: source(read=yielding), "source.read: expected an async def that returns, got"),
    "read, of more": (lambda: source(read=_one), "source.read: expected a function that takes (), got one"),
    "open, plain": (lambda: source(open=plain), "source.open: expected an async def, got"),
    "position, async": (lambda: source(position=asked), "source.position: expected a plain method, got"),
    "seek, of less": (
        lambda: source(seek=of_no_argument),
        "source.seek: expected a function that takes (position), got one that takes ()",
    ),
    "write, plain": (
        lambda: sink(write_batch=lambda self, values: None),
        "sink.write_batch: expected an async",
    ),
    "write, of less": (
        lambda: sink(write=_one),
        "sink.write: expected a function that takes (values, timestamps)",
    ),
    "commit, plain": (
        lambda: sink(TransactionalSink, commit=lambda self, epoch: None),
        "sink.commit: expected an async def, got",
    ),
    "open of a function": (lambda: called(open=plain), "fn.open: expected an async def, got"),
    "call, yielding": (lambda: called(invoke=yielding), "fn.invoke: expected an async def that returns, got"),
    "timeout, async": (lambda: called(timeout=_one), "fn.timeout: expected a plain method, got"),
    "open of a guarded one": (lambda: guarded(open=plain), "fn.open: expected an async def, got"),
}


@pytest.mark.parametrize("case", WRONG)
def test_method_that_is_awaited_where_it_is_called_or_the_reverse_is_refused(case: str) -> None:
    build, message = WRONG[case]
    with pytest.raises(PipelineError) as caught:
        build()
    assert str(caught.value).startswith(message)


def through(method: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of the simplest kind: a plain function, which does not say what is behind it."""

    def calls(*args: Any) -> Any:
        return method(*args)

    return calls


class Partly:
    """A decorator that is an object, and gives a partial."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __get__(self, of: Any, kind: type) -> Any:
        return self if of is None else partial(self.method, of)


def mocked(base: type) -> Any:
    return create_autospec(made(base), instance=True)


def with_attribute(name: str, function: Any) -> Any:
    of = made(Source)
    setattr(of, name, function)
    return of


def either(self: Any, *_: Any) -> Any:
    return self.ready() if self else None


def nowhere(self: Any, *_: Any) -> Any:
    raise NotImplementedError


FIT: dict[str, Callable[[], object]] = {
    "decorated": lambda: source(read=through(_none)),
    "decorated, and says so": lambda: source(read=wraps(_none)(through(_none))),
    "decorated by an object": lambda: source(read=Partly(_none)),
    "partial method": lambda: source(open=partialmethod(through(_one), 5)),
    "calls another": lambda: source(read=lambda self: _none(self), close=lambda self: _none(self)),
    "gives a future, or nothing": lambda: source(open=either),
    "only raises": lambda: source(open=nowhere),
    "attribute": lambda: Pipeline().source(with_attribute("read", lambda: _none(None))),
    "mocked attribute": lambda: Pipeline().source(with_attribute("read", AsyncMock())),
    "attribute that passes it on": lambda: Pipeline().source(
        with_attribute("open", MagicMock(side_effect=made(Source).open))
    ),
    "static": lambda: source(read=staticmethod(partial(_none, None))),
    "takes more": lambda: source(seek=through(_none)),
    "mock": lambda: Pipeline().source(mocked(Source)),
    "sink, decorated": lambda: sink(write_batch=through(_one), flush=through(_none)),
    "sink of another": lambda: sink(TransactionalSink, commit=lambda self, epoch: _one(self, epoch)),
    "function of another": lambda: called(open=through(_none), invoke=through(_one)),
    "guarded": lambda: guarded(close=through(_none)),
}


@pytest.mark.parametrize("case", FIT)
def test_method_that_may_give_what_is_awaited_is_let_pass(case: str) -> None:
    FIT[case]()


class Listing(Source[int]):
    """Gives what it should give when it is awaited."""

    def read(self) -> Any:
        return SourceBatch([1])


async def test_method_that_gives_nothing_to_be_awaited_is_told_to_be_async() -> None:
    pipeline = Pipeline()
    pipeline.source(Listing(), name="list").discard()
    with pytest.raises(SourceError, match=r"step 'list': TypeError.*await.*; make the method an async def"):
        await pipeline.run()


class Client:
    """Has a method to be guarded."""

    async def fetch(self, value: int) -> int:
        return value


@dataclass
class Order:
    id: int
    total: int


@dataclass
class Id:
    id: int


def _any(function: Any) -> Any:
    """For calls that a type checker refuses, too."""
    return function


UNFIT: dict[str, tuple[Callable[[], object], str]] = {
    "guarded method": (
        lambda: _any(retry)(Client.fetch),
        "it is a method: give that of an object, object.method",
    ),
    "batched method": (lambda: _any(batched)(Client.fetch, size=2), "give that of an object, object.method"),
    "guard of nothing": (
        lambda: _any(Pipeline()).source([1]).async_map(retry(attempts=5)),
        "; it is still to be given its function: retry(attempts=5)(fn)",
    ),
    "option": (
        lambda: _any(retry)(fetch, tries=3),
        "retry: there is no option 'tries'; there are: attempts, timeout, wait_initial, ",
    ),
    "option of a decorator": (
        lambda: _any(rate_limit)(rates=3),
        "rate_limit: there is no option 'rates'; there are: rate, per, ",
    ),
    "option of a guard by its place": (
        lambda: _any(rate_limit)(fetch, 100),
        "rate_limit: expected its options by name (rate, per, ",
    ),
    "option of a guard that is still to be given its function": (
        lambda: _any(retry)(3),
        "retry: expected its options by name (attempts, timeout, ",
    ),
    "class of two fields": (
        lambda: _any(Pipeline()).source([(1, 2)]).map(Order),
        "fn: expected a function that takes (element), got one that takes (id: 'int', total: 'int')",
    ),
    "submit": (
        lambda: _any(Pipeline()).source([1]).async_batch(fetch, fetch, fetch, size=2),
        "submit: expected a function that takes (elements, key), got one that takes (value: 'int')",
    ),
    "class of a source": (
        lambda: _any(DeadLetterSource)(JsonLinesSource),
        "give an instance, JsonLinesSource(...)",
    ),
    "class of a store": (lambda: _any(Checkpoints)(store=MemoryStore), "give an instance, MemoryStore(...)"),
    "class of a breaker": (
        lambda: _any(circuit_breaker)(fetch, breaker=Breaker),
        "give an instance, Breaker(...)",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_cannot_be_called_as_it_will_be_is_refused_with_what_to_do(case: str) -> None:
    build, message = UNFIT[case]
    with pytest.raises(PipelineError) as caught:
        build()
    assert message in str(caught.value)


def test_class_is_a_function_of_what_it_is_made_from() -> None:
    found: list[Any] = []
    stream = Pipeline().source([1])
    for function in (Id, str, float, complex, RuntimeError, range):
        stream.map(function).to(found)
