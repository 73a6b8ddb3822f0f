"""Rights that a user of NATS lacks: the server tells the connection so, and answers nobody who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import nats
import pytest

from asyncstream import Checkpoints, MemoryStore, Pipeline, Source, SourceError
from asyncstream.connectors import NatsConsumerSource, NatsSink, NatsStreamSource
from tests.connectors.refusals import check_cannot_be_read, check_cannot_be_written
from tests.servers.nats import NatsServer, running_nats
from tests.servers.process import HOST

pytestmark = pytest.mark.broker

DENIED = {
    "writer": 'publish: { deny: "s.>" }',
    "hearer": 'subscribe: { deny: "_INBOX.>" }',
    "asker": 'publish: { deny: "$JS.API.>" }',
    "puller": 'publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.>" }',
    "maker": 'publish: { deny: "$JS.API.CONSUMER.*.>" }',
    "acknowledger": 'publish: { deny: "$JS.ACK.>" }',
}
"""What each user may not do."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One with these users, whose password is "secret", and with a stream "s" of ten numbers."""
    users = [f"{{ user: {user}, password: secret, permissions: {{ {no} }} }}" for user, no in DENIED.items()]
    users.append("{ user: all, password: secret }")
    options = tmp_path_factory.mktemp("rights") / "options"
    options.write_text(f"authorization {{ users = [{', '.join(users)}] }}")

    async def fill(url: str) -> None:
        client = await nats.connect(url, user="all", password="secret")
        await client.jetstream().add_stream(name="s", subjects=["s.>"])
        for number in range(10):
            await client.jetstream().publish("s.1", b"%d" % number)
        await client.close()

    with running_nats("-c", str(options)) as running:
        asyncio.run(fill(running.url))
        yield running


def of(server: NatsServer, user: str) -> str:
    return f"nats://{user}:secret@{HOST}:{server.port}"


@pytest.mark.parametrize("user", ["writer", "hearer"])
async def test_a_sink_says_which_right_is_missing(server: NatsServer, user: str) -> None:
    begun = asyncio.get_running_loop().time()
    await check_cannot_be_written(NatsSink(of(server, user), "s.2"), "permissions violation for")
    assert asyncio.get_running_loop().time() - begun < 20  # nothing is waited for that cannot come


@pytest.mark.parametrize("user", ["asker", "puller", "maker"])
async def test_a_source_says_which_right_is_missing(server: NatsServer, user: str) -> None:
    sources: list[Source[Any]] = [
        NatsStreamSource(of(server, user), "s"),
        NatsConsumerSource(of(server, user), "s", durable=f"of-{user}"),
    ]
    await asyncio.gather(*(check_cannot_be_read(one, "permissions violation for") for one in sources))


async def test_who_may_not_acknowledge_reads_nothing_twice(server: NatsServer) -> None:
    pipeline, seen = Pipeline("numbers"), list[int]()
    source = NatsConsumerSource[int](of(server, "acknowledger"), "s", durable="d", ack_wait=0.5)
    pipeline.source(source, name="in").to(seen.append, name="out")
    with pytest.raises(SourceError, match=r"step 'in': .*permissions violation for publish to "):
        async with asyncio.timeout(60):
            await pipeline.run(checkpoints=Checkpoints(store=MemoryStore(), every=0.02, keep=1))
    assert seen == list(range(10))
