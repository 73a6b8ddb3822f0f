"""
The methods of a stream that have to do with tables: look things up in one, be one, keep one of each key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, cast, overload

from asyncstream.async_wait import AsyncWaitOptions
from asyncstream.keyed import By, Change, Changes, DeduplicateSpec, Keep, change_log
from asyncstream.lookup import MISSED, Asked, How, Joined, LookupTable, ReadLookupSpec, StreamLookupSpec
from asyncstream.operators.functions import AsyncFunction, call_of
from asyncstream.operators.spec import Spec
from asyncstream.pipeline.handle import Handle
from asyncstream.pipeline.missing_methods import Unfinished
from asyncstream.plan import Output
from asyncstream.shown import Shown
from asyncstream.state import TimeToLive
from asyncstream.validation import (
    Duration,
    Fields,
    check_options,
    choice,
    duration_ms,
    function,
    refuse,
    selector,
)

if TYPE_CHECKING:
    from asyncstream.pipeline.per_key import KeyedResults
    from asyncstream.pipeline.stream import Stream

__all__ = ("StreamTable", "Tabling")

T = TypeVar("T")
R = TypeVar("R")
U = TypeVar("U")


class StreamTable(Unfinished, Shown, Generic[R]):
    """
    A stream that is kept as a table: of each key the row that came last. Made by `stream.as_table`.

    Args:
        stream: its elements are the rows.
        key: gives the key of a row.
        deleted: whether a row takes away that of its key.
    """

    _comes_next = "look its rows up first, for the elements of a stream: stream.lookup(it)"

    def __init__(
        self, stream: Stream[Any], key: Callable[[Any], Any], deleted: Callable[[Any], object] | None
    ) -> None:
        self.stream = stream
        self.key = key
        self.deleted = deleted


class Tabling(Handle[T]):
    """The methods of a stream that have to do with tables."""

    @overload
    def as_table(
        self: Tabling[Change[R]],
        key: Callable[[R], Any] | Fields | None = None,
        *,
        deleted: Callable[[R], object] | str | None = None,
    ) -> StreamTable[R]: ...
    @overload
    def as_table(
        self,
        key: Callable[[T], Any] | Fields | None = None,
        *,
        deleted: Callable[[T], object] | str | None = None,
    ) -> StreamTable[T]: ...
    def as_table(
        self,
        key: Callable[[Any], Any] | Fields | None = None,
        *,
        deleted: Callable[[Any], object] | str | None = None,
    ) -> StreamTable[Any]:
        """
        Keep this stream as a table, for `lookup`: of each key the element that came last.

        The elements may be `Change`s, as a change log has them: rows are then what they are about, also for
        `key` and `deleted`. Both rows of a replacement must have the same key.

        Args:
            key: of a row: a function, the name of a field, or several; None: the key of the stream.
            deleted: whether a row says that the one of its key is gone: a function, or the name of a field.
                Of a change log `-D` says so, too.
        """
        key_by = self._key() if key is None else selector("key", key)
        if key_by is None:
            raise refuse("key", "the key of a row, for this stream has none", key, "e.g. as_table('id')")
        is_gone = None if deleted is None else selector("deleted", deleted)
        return StreamTable(cast("Stream[Any]", self), key_by, is_gone)

    @overload
    def lookup(
        self,
        table: StreamTable[R] | LookupTable[R],
        on: Callable[[T], Any] | Fields | None = None,
        *,
        into: None = None,
        how: Literal["left"] = "left",
        missing: Callable[[T], Awaitable[R | None]] | AsyncFunction[T, Any] | None = None,
        name: str | None = None,
        **options: Unpack[AsyncWaitOptions],
    ) -> Stream[tuple[T, R | None]]: ...
    @overload
    def lookup(
        self,
        table: StreamTable[R] | LookupTable[R],
        on: Callable[[T], Any] | Fields | None = None,
        *,
        into: None = None,
        how: Literal["inner"],
        missing: Callable[[T], Awaitable[R | None]] | AsyncFunction[T, Any] | None = None,
        name: str | None = None,
        **options: Unpack[AsyncWaitOptions],
    ) -> Stream[tuple[T, R]]: ...
    @overload
    def lookup(
        self,
        table: StreamTable[R] | LookupTable[R],
        on: Callable[[T], Any] | Fields | None = None,
        *,
        into: Callable[[T, R | None], U],
        how: Literal["left"] = "left",
        missing: Callable[[T], Awaitable[R | None]] | AsyncFunction[T, Any] | None = None,
        name: str | None = None,
        **options: Unpack[AsyncWaitOptions],
    ) -> Stream[U]: ...
    @overload
    def lookup(
        self,
        table: StreamTable[R] | LookupTable[R],
        on: Callable[[T], Any] | Fields | None = None,
        *,
        into: Callable[[T, R], U],
        how: Literal["inner"],
        missing: Callable[[T], Awaitable[R | None]] | AsyncFunction[T, Any] | None = None,
        name: str | None = None,
        **options: Unpack[AsyncWaitOptions],
    ) -> Stream[U]: ...
    def lookup(
        self,
        table: StreamTable[Any] | LookupTable[Any],
        on: Callable[[T], Any] | Fields | None = None,
        *,
        into: Callable[[T, Any], Any] | None = None,
        how: How = "left",
        missing: Callable[[T], Awaitable[Any]] | AsyncFunction[T, Any] | None = None,
        name: str | None = None,
        **options: Unpack[AsyncWaitOptions],
    ) -> Stream[Any]:
        """
        Each element with its row of a table, or None.

        In a table that is read (`LookupTable`) every row is there before the first element is looked at. In a
        stream (`as_table`) there is what came before the element; where both are of one time, it is chance
        which comes first, and a join by time is what you want.

        Args:
            table: a `LookupTable`, or another stream's `as_table(...)`.
            on: the key of an element's row: a function, the name of a field, or several; None: the key of the
                stream.
            into: makes one of an element and its row, which is the table's own and stays as it is; None: a
                pair of the two.
            how: "left": an element without a row is given with None; "inner": it is left out, and counted.
            missing: asks for a row that is not in the table, of the element: an `async def` that gives the
                row, or None. What has been asked for comes when the answer is there; the others do not wait.
            options: of these calls, as for `async_map`; not `on_error="route"`, nor `on_timeout="route"`.
        """
        from asyncstream.pipeline.stream import Stream  # which has the methods of this class

        key_by = self._key() if on is None else selector("on", on)
        if key_by is None:
            raise refuse("on", "the key of an element's row, for this stream has no key", on)
        if into is not None:
            function("into", into, "element", "row")
        joined = Joined(key_by, into, choice("how", how, ("left", "inner")), missing is not None)
        if missing is not None:
            call_of(
                "missing", missing, "element", expected="an async def of one element, or an AsyncFunction"
            )
        spec, shown, outputs = _spec_of(self, table, joined)
        details = {"table": shown, "on": on, "into": into, "how": how}
        if missing is None and options:
            raise refuse("lookup", "no options of calls without missing=", sorted(options))
        check_options("lookup", options, tuple(AsyncWaitOptions.__annotations__))
        for option in ("on_error", "on_timeout"):
            if options.get(option) == "route":
                raise refuse(option, "'fail' or 'skip'", "route", "have missing= give None instead")
        with self._graph.together():
            found: Stream[Any] = Stream(self._graph, self._step("lookup", name, spec, details, outputs))
            if missing is None:
                return found
            missed: Stream[Any] = Stream(self._graph, Output(found._output.step, MISSED))
            asked = missed.async_flat_map(
                Asked(missing, joined), name=None if name is None else f"{name}.missing", **options
            )
            return found.union(asked, name=None if name is None else f"{name}.all")

    @overload
    def deduplicate(
        self,
        key: Callable[[T], object] | Fields | None = None,
        *,
        keep: Keep = "first",
        by: By = "arrival",
        within: Duration | None = None,
        changes: None = None,
        name: str | None = None,
    ) -> KeyedResults[T]: ...
    @overload
    def deduplicate(
        self,
        key: Callable[[T], object] | Fields | None = None,
        *,
        keep: Keep = "first",
        by: By = "arrival",
        within: Duration | None = None,
        changes: Changes,
        name: str | None = None,
    ) -> KeyedResults[Change[T]]: ...
    def deduplicate(
        self,
        key: Any = None,
        *,
        keep: Keep = "first",
        by: By = "arrival",
        within: Duration | None = None,
        changes: Changes | None = None,
        name: str | None = None,
    ) -> KeyedResults[Any]:
        """
        Keep one element of each key.

        The first by arrival is passed on at once. The first by event time is passed on when the watermark
        reaches it, since an earlier one may still come; what is behind the watermark goes to `.late`. The
        last is passed on at once, and again whenever another takes its place: by arrival each one that is
        not equal, by event time each one that is not earlier.

        Args:
            key: what makes elements the same; None: the key of the stream.
            keep: "first" or "last".
            by: "arrival", or "event_time".
            within: for how long a key is remembered, in processing time, from the time when the element that
                is kept came (by event time the first: was passed on); a `timedelta` or seconds. None: for
                ever.
            changes: give a change log, of `Change`s, instead of elements: "all", "upserts" (no `-U`) or
                "updates" (`+U` alone). The first by event time then does not wait: it is replaced.
        """
        from asyncstream.pipeline.per_key import PerKey

        keyed: Any = self if key is None else cast("Stream[Any]", self).key_by(key)
        if not isinstance(keyed, PerKey):
            raise refuse("key", "what makes elements the same, for this stream has no key", key)
        if within is not None:  # not a TimeToLive: what begins the time anew is said by `keep` and `by`
            duration_ms("within", within)
        spec = DeduplicateSpec(
            keyed._key_by,
            choice("keep", keep, ("first", "last")),
            choice("by", by, ("arrival", "event_time")),
            None if within is None else TimeToLive(within),
            change_log(changes, ("all", "upserts", "updates")),
        )
        details = {"keep": keep, "by": by, "within": within, "changes": changes}
        return keyed._results("deduplicate", name, spec, details)


def _spec_of(stream: Handle[Any], table: object, joined: Joined) -> tuple[Spec, str, tuple[Output, ...]]:
    """The spec of a lookup, what the table is in words, and what the step reads."""
    if isinstance(table, LookupTable):
        return ReadLookupSpec(table, joined), table.shown, (stream._output,)
    if not isinstance(table, StreamTable):
        raise refuse("table", "a LookupTable, or a stream's as_table(...)", table)
    rows = table.stream
    stream._check_together("lookup", rows)
    outputs = (stream._output, rows._output)
    return StreamLookupSpec(joined, table.key, table.deleted), str(rows._output), outputs
