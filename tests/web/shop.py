"""
A shop to look at: orders and returns are enriched, priced and counted, in a service in a thread of its own.

What its services do can be changed while it runs: they hang, or sinks become slow.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    Count,
    MemoryStore,
    Pipeline,
    Sink,
    Sum,
    SystemClock,
    TumblingWindows,
)
from asyncstream.elements import Timestamps
from asyncstream.guards import circuit_breaker, retry
from asyncstream.web import app, lifespan

__all__ = ("EVIL", "Shop", "serving")

Order = dict[str, Any]

EVIL = "<img src=x onerror=alert(1)>"
"""The name of a step and the text of an element: markup that must come out as text."""


@dataclass
class Shop:
    """
    How the services of the shop behave; to be changed in its loop, by `do`.

    Attributes:
        url: where the sub-app is.
        answers: the price service answers; cleared, it hangs.
        writes: the sink of windows writes; cleared, it is busy.
        returns: returns come in; cleared, that source is silent.
    """

    url: str = ""
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    writes: asyncio.Event = field(default_factory=asyncio.Event)
    returns: asyncio.Event = field(default_factory=asyncio.Event)
    loop: asyncio.AbstractEventLoop | None = None
    server: uvicorn.Server | None = None

    def do(self, change: Callable[[], object]) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(change)

    def well(self) -> None:
        """Everything works."""
        for each in (self.answers, self.writes, self.returns):
            each.set()

    def cut(self) -> None:
        """Every connection breaks; new ones are taken."""
        assert self.server is not None
        for connection in list(self.server.server_state.connections):
            connection.transport.abort()

    def pipeline(self, sink: str = EVIL, *, ledger: str = "ledger") -> Pipeline:
        """The pipeline of the shop, with sinks of these names."""
        pipeline = Pipeline("shop orders")
        late = BoundedOutOfOrderness(1)
        orders = pipeline.source(self._orders, name="orders").event_time(_at, late, name="order time")
        returns = pipeline.source(self._returns, name="returns").event_time(_at, late, name="return time")
        lookup = retry(circuit_breaker(self._customer), attempts=2, wait_initial=0.01)
        known = orders.union(returns, name="all").async_map(
            lookup, name="customer", concurrency=40, order="unordered", on_error="route"
        )
        known.failed.to(_forget, name="dead letters")
        priced = known.async_map(self._price, name="price", concurrency=24)
        priced.filter(lambda order: order["price"] > 40, name="expensive").to(_forget, name=sink)
        per_customer = priced.key_by(lambda order: order["customer"]).window(TumblingWindows(2))
        counted = per_customer.aggregate(orders=Count(), total=Sum("price"), name="per customer")
        counted.to(_Slow(self.writes), name=ledger)
        return pipeline

    async def _orders(self) -> AsyncIterator[Order]:
        number = 0
        while True:
            for _ in range(8):
                number += 1
                yield _order(number)
            await asyncio.sleep(0.05)

    async def _returns(self) -> AsyncIterator[Order]:
        number = 0
        while True:
            await self.returns.wait()
            number -= 1
            yield _order(number)
            await asyncio.sleep(0.25)

    async def _customer(self, order: Order) -> Order:
        await asyncio.sleep(0.03 + order["id"] % 17 * 0.004)
        if order["id"] % 40 == 0:
            raise LookupError(f"no customer {order['customer']!r}")
        return order

    async def _price(self, order: Order) -> Order:
        await self.answers.wait()
        await asyncio.sleep(0.05 + order["id"] % 11 * 0.006)
        return order | {"price": order["id"] % 60}


class _Slow(Sink[Any]):
    def __init__(self, writes: asyncio.Event) -> None:
        self._writes = writes

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        await self._writes.wait()


def _order(number: int) -> Order:
    return {"id": number, "customer": f"customer {number % 7}", "note": EVIL, "at": SystemClock().now_ms()}


def _at(order: Order) -> int:
    at: int = order["at"]
    return at


def _forget(value: object) -> None:
    pass


@contextmanager
def serving(make: Callable[[Shop], Pipeline] = Shop.pipeline, **options: Any) -> Iterator[Shop]:
    """A shop in a thread of its own until the block is left; the options are those of the sub-app."""
    shop = Shop()
    shop.well()
    running = lifespan(make(shop), checkpoints=Checkpoints(store=MemoryStore(), every=2), grace=0)
    opened = threading.Event()
    leaves = asyncio.Event()

    async def serve() -> None:
        shop.loop = asyncio.get_running_loop()
        async with running(None) as state:
            config = uvicorn.Config(app(state["job"], **options), port=0, log_level="warning")
            shop.server = server = uvicorn.Server(config)
            serves = asyncio.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110 - of uvicorn's, which tells nobody
                await asyncio.sleep(0.01)
            host, port = server.servers[0].sockets[0].getsockname()
            shop.url = f"http://{host}:{port}/"
            opened.set()
            await leaves.wait()
            await state["job"].stop(0)  # ends the streams, for which the server would wait
            server.should_exit = True
            await serves

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert opened.wait(60)
        yield shop
    finally:
        shop.do(leaves.set)
        thread.join(60)
        assert not thread.is_alive()
