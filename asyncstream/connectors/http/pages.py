"""
JSON APIs that give their answers page by page, as a source.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Unpack

import aiohttp
from yarl import URL

from asyncstream.connectors.cancellation import answered_within
from asyncstream.connectors.http.answers import TooLarge, Undecodable, decoded, read_body
from asyncstream.connectors.http.connection import NOTHING, Arrival, ConnectedSource, ConnectionOptions
from asyncstream.connectors.http.urls import shown
from asyncstream.connectors.messages import RejectedMessage
from asyncstream.connectors.models import Unfit, reader
from asyncstream.errors import HttpError, SourceError, safe_repr
from asyncstream.validation import Duration, count, duration_seconds, function, refuse, text

__all__ = ("RestSource",)


class RestSource(ConnectedSource[Any]):
    """
    Reads the items of a paginated JSON API, one page after the other.

        RestSource("https://api.example.com/orders", items="data", cursor="next_cursor", param="after")
        RestSource("https://api.github.com/repos/pola-rs/polars/issues")  # by its Link header
        RestSource("https://api.example.com/orders", items="orders", page="page")  # numbered

    Its position is the page, as the service names it, and how many of its items were read. A job that goes on
    asks for that page again, so what the service has added or removed in it meanwhile shifts what follows;
    services that hand out cursors do not do that.

    Args:
        url: of the first page; http or https.
        items: where a page has its items: the name of a field, names joined by dots, or a function of the
            answer; None: the answer is the list. A page that has null there, and the answer 204, have none.
        cursor: where a page says what the next one is, in the same way: a URL, relative or not, of the same
            origin, or with `param` a value. Nothing, false or "" there ends the input. If neither this nor
            `page` is given, the header `Link` says it.
        param: the parameter of the query that takes the cursor.
        page: the parameter of the query that takes the number of a page. A page without items ends the input.
        first: the number of the first page.
        model: a dataclass, NamedTuple, TypedDict or pydantic model of which each item is to become one; see
            `connectors.models`. An item that is none is malformed.
        poll: how long to wait at the end, before the last page with items is asked for again (a `timedelta`
            or seconds); None: the end of the last page is the end of input. Where a service always says what
            the next page is, waits between pages without items grow up to this one, or to `wait_max`.
        pause: how long to wait between two pages, for the service's sake.
        max_bytes: the largest page, compressed or not.
        options: `headers`, `attempts`, `wait_initial`, `wait_max`, `timeout`, `on_malformed`, `buffer`,
            `client`: see `Connection`.

    Raises:
        PipelineError: if an argument is not as described.
    """

    def __init__(
        self,
        url: str,
        *,
        items: str | Callable[[Any], Any] | None = None,
        cursor: str | Callable[[Any], Any] | None = None,
        param: str | None = None,
        page: str | None = None,
        first: int = 1,
        model: type[Any] | None = None,
        poll: Duration | None = None,
        pause: Duration = 0.0,
        max_bytes: int = 10 * 2**20,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(url, ("http", "https"), options)
        self._items = _finder("items", items, null=[])
        self._cursor = None if cursor is None else _finder("cursor", cursor)
        self._param = None if param is None else text("param", param)
        self._page = None if page is None else text("page", page)
        if self._page is not None and (cursor is not None or param is not None):
            raise refuse("page", "none with cursor= or param=", page)
        if param is not None and cursor is None:
            raise refuse("cursor", "with param=, where a page says what the next one is", cursor)
        self._first = count("first", first, least=0)
        if self._page is None and first != 1:
            raise refuse("page", "with first=, the parameter that takes the number of a page", page)
        self._model = None if model is None else reader(model)
        self._poll = None if poll is None else duration_seconds("poll", poll)
        self._pause = duration_seconds("pause", pause, zero=True)
        self._limit = count("max_bytes", max_bytes)

    async def _arrivals(self, session: aiohttp.ClientSession, place: Any) -> AsyncGenerator[Arrival, None]:
        at, read = (None, 0) if place is None else (place["page"], place["items"])
        round_trip = _RoundTrip()
        before: tuple[Any, int] | None = None
        empty = 0  # pages, in a row
        while True:
            items, following = await self._asked(session, at)
            round_trip.check(self._url, at, items if self._page is not None else ())
            for item in items[read:]:
                read += 1
                yield Arrival(self._value(item), {"page": at, "items": read})
            if following is not None and following != at:
                before, (at, read) = (at, read), (following, 0)
                empty = 0 if items else empty + 1
                if empty:
                    yield Arrival(NOTHING, {"page": at, "items": 0})
                await asyncio.sleep(max(self._pause, self._until_next(empty)))
            elif self._poll is None:
                return
            else:
                self._failed = 0  # all there is has been read, and perhaps nothing comes for long
                await asyncio.sleep(self._poll)
                if self._page is not None and not read and before is not None:
                    (at, read), round_trip = before, _RoundTrip()  # there may be room in it yet

    def _until_next(self, empty: int) -> float:
        """How long to wait after so many pages without items, each of which has named another one."""
        if not empty or self._poll is None:
            return 0.0
        self._failed = 0  # perhaps all there is has been read: there are services that always name another
        return min(self._poll, self._connection.wait(empty))

    async def _asked(self, session: aiohttp.ClientSession, at: Any) -> tuple[list[Any], Any]:
        """The items of a page, and what the next one is called."""
        url = self._of_page(at)
        async with answered_within(self._timeout):
            response = await self._answer(session, url, {"Accept": "application/json"})
            async with response:
                try:
                    page = decoded(await read_body(response, self._limit), response)
                except TooLarge:
                    raise SourceError(
                        f"a page of {shown(url)} has more than max_bytes={self._limit} bytes"
                    ) from None
                except Undecodable as error:
                    raise HttpError(shown(url), response.status, str(error), retryable=True) from error
        items = [] if response.status == 204 else self._items(page)
        if not isinstance(items, list):
            raise SourceError(
                f"{shown(url)}: expected a list of items, got a {type(items).__name__}; say where it is, "
                "items="
            )
        return items, self._following(response, url, page, at, items)

    def _of_page(self, at: Any) -> URL:
        if self._page is not None:
            return self._url.update_query({self._page: str(self._first if at is None else at)})
        if at is None:
            return self._url
        if self._param is not None:
            return self._url.update_query({self._param: str(at)})
        page = URL(at).with_user(None)  # it does not choose who asks for it, and often does not name him
        user = self._url.user
        return page if user is None else page.with_user(user).with_password(self._url.password)

    def _following(
        self, response: aiohttp.ClientResponse, url: URL, page: Any, at: Any, items: list[Any]
    ) -> Any:
        if self._page is not None:
            return (self._first if at is None else at) + 1 if items else None
        if self._cursor is not None:
            found = self._cursor(page)
            if found is None or found is False or found == "":
                return None
            if isinstance(found, bool) or not isinstance(found, str | int | float):
                raise SourceError(
                    f"{shown(url)}: expected a cursor, got {safe_repr(found, 60)}; say where it is"
                )
            if self._param is not None:
                return found
        else:
            found = _next_of(response)
            if found is None:
                return None
        try:
            target = url.join(URL(str(found))).with_user(None).with_fragment(None)
            is_away = target.origin() != self._url.origin()
        except ValueError:  # its text may quote the whole of it
            raise SourceError(f"{shown(url)} names a page that is no URL") from None
        if is_away:  # which would get the headers
            raise SourceError(f"{shown(url)} names a page of another origin: {shown(target)}")
        # the last page of some services names itself, and the first one may be the last
        return at if target == url.with_user(None).with_fragment(None) else str(target)

    async def can_seek(self, position: dict[str, Any]) -> None:
        at = position["page"]
        if at is None or self._param is not None:
            return
        if self._page is not None and not isinstance(at, int):
            raise self._elsewhere("its pages had no numbers then")
        if self._page is None and not isinstance(at, str):
            raise self._elsewhere("its pages had numbers then, which page= asks for")
        if self._page is None and URL(at).origin() != self._url.origin():  # which would get the headers
            raise self._elsewhere(f"it was {shown(at)}, of another origin")

    async def seek(self, position: dict[str, Any]) -> None:
        await self.can_seek(position)
        await super().seek(position)

    def _elsewhere(self, why: str) -> SourceError:
        return SourceError(
            f"cannot go on at the page of {shown(self._url)} that was read last: {why}. Read it as it was, "
            "or begin at the start by another name for the source or restore='none'"
        )

    def _value(self, item: Any) -> Any:
        if self._model is None:
            return item
        try:
            return self._model(item)
        except Unfit as error:
            if not self.rejects:
                raise SourceError(f"{shown(self._url)}: {error}") from error
            return RejectedMessage(shown(self._url), "", item, str(error))


def _next_of(response: aiohttp.ClientResponse) -> Any:
    """The page that the header `Link` says to be the next one; None: there is none."""
    for link in response.links.values():
        relations = [value for name, value in link.items() if name.lower() == "rel"]
        if relations and "next" in str(relations[0]).lower().split():
            return link.get("url")
    return None


class _RoundTrip:
    """
    Finds out whether pages lead back to where they came from: they would be read for ever.

    One page is remembered, and after twice as many as last time another one: so any circle is found, by when
    it was gone round a few times, and however many pages there are, only one is remembered (Brent).
    """

    def __init__(self) -> None:
        self._known: Any = ...
        self._steps, self._most = 0, 1
        self._at: Any = ...  # no page so far
        self._items: Sequence[Any] = ()

    def check(self, url: URL, at: Any, items: Sequence[Any]) -> None:
        """
        Raises `SourceError` if this page, which was asked for, was read before.

        Args:
            url: of the first one, for the message.
            at: what the page is called.
            items: of a page that is called by its number: its items, which are not those of the one before.
        """
        if at == self._at:  # it is polled
            return
        if at == self._known:
            raise SourceError(
                f"the pages of {shown(url)} lead in a circle: {safe_repr(at, 60)} comes again; see what the "
                "service says to be the next one, cursor="
            )
        if items and items == self._items:
            raise SourceError(
                f"page {at} of {shown(url)} has the items of the one before: the service does not heed "
                "page=, or gives its last page again and again; see how it counts its pages"
            )
        self._steps += 1
        if self._steps == self._most:
            self._known, self._steps, self._most = at, 0, 2 * self._most
        self._at, self._items = at, items


def _finder(name: str, where: str | Callable[[Any], Any] | None, *, null: Any = None) -> Callable[[Any], Any]:
    """What finds something in an answer: None where it is not, and `null` where its field is null."""
    if where is None:
        return lambda page: page
    if callable(where):
        return function(name, where, "page")
    fields = text(name, where).split(".")

    def find(page: Any) -> Any:
        for field in fields:
            if not isinstance(page, Mapping) or field not in page:
                return None
            page = page[field]
        return null if page is None else page

    return find
