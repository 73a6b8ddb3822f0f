"""The feed against an obvious model, and the events that a client hears of it, with and without gaps."""

from __future__ import annotations

import asyncio
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from asyncstream.testing.loop import run_virtual
from asyncstream.web.asgi import Application, Message, Receive, Scope, Send
from asyncstream.web.feed import Feed
from asyncstream.web.sse import PIECE, event, stream_feed
from tests.web.client import Listening, http


@given(st.integers(1, 5), st.integers(0, 12), st.integers(0, 14))
def test_reader_gets_what_is_kept_of_what_it_has_not_read(keep: int, items: int, read: int) -> None:
    feed: Feed[int] = Feed(keep)
    for number in range(1, items + 1):
        feed.put(number)
    kept = list(range(1, items + 1))[-keep:]
    assert feed.after(read) == [number for number in kept if number > read]
    assert feed.oldest == (kept[0] if kept else 1)


@given(st.text(max_size=30))
def test_mark_is_read_back_and_nothing_else_is(text: str) -> None:
    feed: Feed[int] = Feed(3)
    for number in range(5):
        feed.put(number)
    assert [feed.number_of(feed.mark(number)) for number in range(6)] == list(range(6))
    assert Feed[int](3).number_of(feed.mark(2)) is None
    if not text.startswith(feed.name):
        assert feed.number_of(text) is None
    assert feed.number_of(f"{feed.name}-{text}x") is None
    assert feed.number_of(f"{feed.name}-99") == 5  # not the future


def test_event_of_several_lines_keeps_them_and_cannot_be_ended_early() -> None:
    assert event(b"a\nb\r\n\nid: forged") == b"data: a\ndata: b\ndata: \ndata: id: forged\n\n"
    assert event(b"") == b"data: \n\n"
    assert event(b"x", id="7", kind="missed") == b"id: 7\nevent: missed\ndata: x\n\n"


def fed(feed: Feed[int], only: int | None = None) -> Application:
    def render(item: int) -> bytes | None:
        return None if only is not None and item % only else b"%d" % item

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await stream_feed(scope, receive, send, feed, render)

    return app


def lines(body: str, start: str = "data: ") -> list[str]:
    return [line.removeprefix(start) for line in body.splitlines() if line.startswith(start)]


def test_client_hears_from_now_on_and_goes_on_where_it_was() -> None:
    async def main() -> tuple[list[str], list[str]]:
        feed: Feed[int] = Feed(10)
        app = fed(feed)
        feed.put(1)
        async with Listening(app, http("/")) as first:
            mark = lines(await first.until("id: "), "id: ")[0]
            feed.put(2)
            before = lines(await first.until("data: 2\n"))
        feed.put(3)
        headers = {"Last-Event-ID": mark}  # it was cut off before it heard the first event
        async with Listening(app, http("/", headers=headers)) as second:
            await second.until("data: 3\n")
            feed.put(4)
            feed.end()
            return before, lines((await second.ended()).body.decode())

    assert run_virtual(main()) == (["2"], ["2", "3", "4"])


def test_client_is_told_what_it_has_missed() -> None:
    async def main() -> tuple[str, str]:
        feed: Feed[int] = Feed(3)
        app = fed(feed)
        async with Listening(app, http("/")) as slow:
            await slow.until("id: ")
            slow.pause()
            feed.put(0)
            await asyncio.sleep(1)  # it is being sent, and not read
            for number in range(1, 10):
                feed.put(number)
            slow.go_on()
            missed = await slow.until("data: 9\n")
        headers = {"Last-Event-ID": "another-1"}
        async with Listening(app, http("/", headers=headers)) as stranger:
            return missed, await stranger.until("data: 9\n")

    missed, stranger = run_virtual(main())
    assert lines(missed) == ["0", '{"events":6}', "7", "8", "9"]
    assert lines(stranger) == ['{"after":"another-1"}', "7", "8", "9"]
    assert lines(missed, "event: ") == lines(stranger, "event: ") == ["missed"]


def test_no_client_has_a_copy_of_all_that_is_kept() -> None:
    async def main() -> list[int]:
        feed: Feed[int] = Feed(100)
        for number in range(100):
            feed.put(number)
        feed.end()
        sizes: list[int] = []

        async def send(message: Message) -> None:
            sizes.append(len(message.get("body", b"")))

        async def receive() -> Message:
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

        await stream_feed(http("/"), receive, send, feed, lambda _: bytes(10_000), since=0)
        return sizes

    sizes = run_virtual(main())
    assert sum(sizes) > 100 * 10_000
    assert max(sizes) < PIECE + 11_000


def test_quiet_stream_is_kept_alive_and_a_client_that_leaves_is_forgotten() -> None:
    async def main() -> str:
        feed: Feed[int] = Feed(3)
        async with Listening(fed(feed), http("/")) as listening:
            heard = await listening.until(f": quiet\nid: {feed.mark(0)}\n\n" * 2)
        assert len(asyncio.all_tasks()) == 1
        return heard

    assert lines(run_virtual(main())) == []


def test_what_a_client_does_not_want_it_does_not_hear() -> None:
    async def main() -> list[str]:
        feed: Feed[int] = Feed(10)
        async with Listening(fed(feed, only=3), http("/")) as listening:
            await listening.until("id: ")
            for number in islice(range(100), 10):
                feed.put(number)
            feed.end()
            return lines((await listening.ended()).body.decode())

    assert run_virtual(main()) == ["0", "3", "6", "9"]


def test_client_that_wants_nothing_of_a_busy_stream_is_kept_alive_and_misses_nothing() -> None:
    async def main() -> tuple[str, str]:
        feed: Feed[int] = Feed(5)
        async with Listening(fed(feed, only=1000), http("/")) as listening:
            await listening.until("id: ")
            for number in range(1, 60):  # one a second
                feed.put(number)
                await asyncio.sleep(1)
            heard = listening.answer.body.decode()
        remembered = lines(heard, "id: ")[-1]
        feed.end()
        async with Listening(fed(feed, only=1000), http("/", headers={"Last-Event-ID": remembered})) as again:
            return heard, (await again.ended()).body.decode()

    heard, again = run_virtual(main())
    assert heard.count(": quiet\n") == 3
    assert lines(heard) == []
    assert lines(again) == ['{"events":9}']  # of those that nobody could see whether it wants them
