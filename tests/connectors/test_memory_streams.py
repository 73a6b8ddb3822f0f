"""Memory streams of anyio at either end of a pipeline: in order, bounded, nothing lost by a stop."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from asyncstream import Pipeline, PipelineError, SinkError, SourceError
from asyncstream.connectors import MemoryStreamSink, MemoryStreamSource
from tests.runtime.parts import boom, run, sleeping


def stream(buffer: float = 0) -> tuple[MemoryObjectSendStream[Any], MemoryObjectReceiveStream[Any]]:
    return anyio.create_memory_object_stream[Any](buffer)


async def received(receive: MemoryObjectReceiveStream[Any]) -> list[Any]:
    async with receive:
        return [value async for value in receive]


@pytest.mark.parametrize("buffer", [0, 3, 5000])
def test_elements_go_through_in_order_until_all_who_send_have_closed(buffer: int) -> None:
    async def main() -> None:
        send, pipeline_receives = stream(buffer)
        pipeline_sends, receive = stream(buffer)

        async def sender(own: MemoryObjectSendStream[Any], first: int) -> None:
            async with own:
                for number in range(first, first + 1000):
                    await own.send(number)

        pipeline = Pipeline()
        pipeline.source(pipeline_receives).async_map(sleeping(0.001)).to(pipeline_sends)
        with pipeline_receives:
            async with anyio.create_task_group() as group:
                group.start_soon(sender, send.clone(), 0)
                group.start_soon(sender, send, 1000)
                group.start_soon(pipeline.run)
                got = await received(receive)
        assert sorted(got) == list(range(2000))
        assert [value for value in got if value < 1000] == list(range(1000))

    run(main())


def test_an_element_is_handed_on_at_once() -> None:
    async def main() -> None:
        send, pipeline_receives = stream()
        pipeline_sends, receive = stream()
        pipeline = Pipeline()
        pipeline.source(pipeline_receives).to(pipeline_sends)
        async with pipeline.start() as job:
            for number in range(3):
                await asyncio.sleep(10)
                await send.send(number)
                assert await receive.receive() == number
            send.close()
            await job.wait()
        with pytest.raises(anyio.EndOfStream):
            await receive.receive()
        receive.close()
        pipeline_receives.close()

    run(main())


def test_who_sends_waits_for_a_slow_pipeline_and_that_for_who_receives() -> None:
    async def main() -> None:
        send, pipeline_receives = stream()
        pipeline_sends, receive = stream(2)
        pipeline = Pipeline()
        source = MemoryStreamSource(pipeline_receives, batch=1)
        pipeline.source(source).async_map(sleeping(1), concurrency=1, buffer=1).to(pipeline_sends)
        sent = 0
        async with pipeline.start() as job:

            async def sender() -> None:
                nonlocal sent
                async with send:
                    for number in range(5000):
                        await send.send(number)
                        sent += 1

            sending = asyncio.create_task(sender())
            await asyncio.sleep(5000)
            before = sent
            assert before < 4000
            await asyncio.sleep(1000)
            assert sent == before
            with pytest.raises(TimeoutError):
                await job.drain(5)
            got = [await receive.receive() for _ in range(before)]
            assert got == list(range(before))
            sending.cancel()
            await asyncio.wait({sending})
            await job.stop(1)
        receive.close()
        pipeline_receives.close()

    run(main())


@pytest.mark.parametrize("buffer", [0, 2])
def test_a_job_that_goes_on_where_another_was_stopped_loses_nothing(buffer: int) -> None:
    async def main() -> None:
        send, pipeline_receives = stream(buffer)
        seen: list[int] = []
        pipeline = Pipeline()
        pipeline.source(pipeline_receives).to(seen)
        sent = 0

        async def sender() -> None:
            nonlocal sent
            while True:
                await send.send(sent)
                sent += 1

        sending = asyncio.create_task(sender())
        snapshot = None
        for turn in range(30):
            async with pipeline.start(snapshot=snapshot) as job:
                for _ in range(turn % 7):
                    await asyncio.sleep(0)
                snapshot = await job.stop()
        sending.cancel()
        await asyncio.wait({sending})
        send.close()
        async with pipeline.start(snapshot=snapshot) as job:
            await job.wait()
        pipeline_receives.close()
        # the last one may have been received as its sender was cancelled
        assert seen in (list(range(sent)), list(range(sent + 1)))
        assert sent > 30

    run(main())


def test_drain_reads_no_more_and_leaves_the_rest_to_others() -> None:
    async def main() -> None:
        send, receive = stream(10)
        seen: list[int] = []
        pipeline = Pipeline()
        pipeline.source(receive).to(seen)
        async with pipeline.start() as job:
            await send.send(1)
            await asyncio.sleep(1)
            await job.drain()
            await send.send(2)
        assert seen == [1]
        assert await receive.receive() == 2
        send.close()
        receive.close()

    run(main())


@pytest.mark.parametrize("buffer", [0, 2])
@pytest.mark.parametrize("turn", range(8))
def test_drain_loses_nothing_that_is_sent_meanwhile(buffer: int, turn: int) -> None:
    async def main() -> None:
        send, receive = stream(buffer)
        seen: list[int] = []
        pipeline = Pipeline()
        pipeline.source(receive).to(seen)

        async def sender() -> None:
            for number in range(4):
                await send.send(number)
            send.close()

        async with pipeline.start() as job:
            await asyncio.sleep(1)  # it waits for the first
            sending = asyncio.create_task(sender())
            for _ in range(turn):
                await asyncio.sleep(0)
            await job.drain()
        assert seen + await received(receive) == [0, 1, 2, 3]
        await sending

    run(main())


def test_sink_tells_when_nobody_receives_any_more() -> None:
    async def main() -> None:
        send, receive = stream()
        pipeline = Pipeline()
        pipeline.source(range(10)).to(send, name="out")
        receive.close()
        with pytest.raises(SinkError, match="step 'out': there is no receiver"):
            await pipeline.run()

    run(main())


def test_failed_pipeline_ends_who_receives() -> None:
    async def main() -> None:
        send, receive = stream(5)
        pipeline = Pipeline()
        pipeline.source(range(10)).map(lambda value: boom() if value == 3 else value).to(send)
        receiving = asyncio.create_task(received(receive))
        with pytest.raises(Exception, match="Boom"):
            await pipeline.run()
        assert await receiving == list(range(len(receiving.result())))

    run(main())


def test_stream_that_is_to_stay_open_serves_the_next_job() -> None:
    async def main() -> None:
        send, receive = stream(10)
        pipeline = Pipeline()
        pipeline.source([1, 2]).to(MemoryStreamSink(send, close=False))
        await pipeline.run()
        await pipeline.run()
        send.close()
        assert await received(receive) == [1, 2, 1, 2]

    run(main())


def test_closed_streams_are_refused() -> None:
    async def main() -> None:
        send, receive = stream()
        send.close()
        receive.close()
        pipeline = Pipeline()
        pipeline.source(receive, name="in").discard()
        with pytest.raises(SourceError, match="step 'in': the memory stream is closed at this end"):
            await pipeline.run()
        pipeline = Pipeline()
        pipeline.source([1]).to(send, name="out")
        with pytest.raises(
            SinkError, match=r"step 'out': .* closed .*MemoryStreamSink\(stream, close=False\)"
        ):
            await pipeline.run()

    run(main())


def test_wrong_arguments_are_refused() -> None:
    async def main() -> None:
        send, receive = stream()
        with send, receive:
            for wrong in ([1], send):
                with pytest.raises(PipelineError, match="stream: expected the receiving end"):
                    MemoryStreamSource(wrong)  # type: ignore[arg-type]
            with pytest.raises(PipelineError, match="stream: expected the sending end"):
                MemoryStreamSink(receive)  # type: ignore[arg-type]
            with pytest.raises(PipelineError, match="close: expected True or False"):
                MemoryStreamSink(send, close=None)  # type: ignore[arg-type]
            with pytest.raises(PipelineError, match="batch: expected"):
                MemoryStreamSource(receive, batch=0)
            with pytest.raises(PipelineError, match="sink: expected"):
                Pipeline().source([1]).to(receive)  # type: ignore[arg-type]

    run(main())
