"""
The methods of a stream that bring it together with others, element by element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from asyncstream.joins import How
from asyncstream.pipeline.handle import Handle

if TYPE_CHECKING:
    from asyncstream.pipeline.connected import Broadcast, Connected, ConnectedToBroadcast, Several
    from asyncstream.pipeline.joined import AsOf, CoGroup, Join
    from asyncstream.pipeline.stream import Stream

__all__ = ("Joining",)

T = TypeVar("T")
U = TypeVar("U")


class Joining(Handle[T]):
    """The methods of a stream that bring it together with others."""

    @overload
    def connect(self, other: Stream[U], /) -> Connected[T, U]: ...
    @overload
    def connect(self, other: Broadcast[U], /) -> ConnectedToBroadcast[T, U]: ...
    @overload
    def connect(self, one: Stream[Any], other: Stream[Any], /, *others: Stream[Any]) -> Several[T]: ...
    def connect(self, *others: Any) -> Any:
        """
        This stream and others, for one function of yours: `a.connect(b).process(MyCoProcessFunction())`.

        Either all are keyed, each by a key of its own, and state and timers are those of a key; or none is,
        and all elements are of one key, None.

        Args:
            others: other streams; or one `stream.broadcast()`, whose elements are for all keys.
        """
        from asyncstream.pipeline.connected import connected  # which is made of streams

        return connected(self, others)

    def broadcast(self) -> Broadcast[T]:
        """
        This stream for all keys of another: `events.connect(rules.broadcast()).process(...)`.

        What it leaves in the broadcast state is kept in memory and whole in each checkpoint, and grows until
        your function removes what is done.
        """
        from asyncstream.pipeline.connected import Broadcast

        return Broadcast(self)

    @overload
    def join(self, other: Stream[U], *, how: Literal["inner"] = "inner") -> Join[T, U]: ...
    @overload
    def join(self, other: Stream[U], *, how: Literal["left"]) -> Join[T, U | None]: ...
    @overload
    def join(self, other: Stream[U], *, how: Literal["right"]) -> Join[T | None, U]: ...
    @overload
    def join(self, other: Stream[U], *, how: Literal["full"]) -> Join[T | None, U | None]: ...
    def join(self, other: Any, *, how: How = "inner") -> Any:
        """
        Pairs of elements of both streams with the same key, and near each other in event time.

        Say how near with `.within(before, after)` or `.window(assigner)`; either gives a stream of tuples
        (left, right). Both streams are keyed, each by a key of its own.

        Args:
            how: what becomes of elements that have no partner: "inner": nothing; "left": those of this
                stream are emitted as (left, None) when they cannot get one any more; "right": those of the
                other as (None, right); "full": both.
        """
        from asyncstream.pipeline.joined import Join

        return Join(self, other, how)

    def co_group(self, other: Stream[U]) -> CoGroup[T, U]:
        """
        What both streams have in the same window of a key, as two lists: `a.co_group(b).window(assigner)`.

        Both streams are keyed, each by a key of its own.
        """
        from asyncstream.pipeline.joined import CoGroup

        return CoGroup(self, other)

    def as_of(self, versions: Stream[U], *, latest: bool = False, name: str | None = None) -> AsOf[T, U]:
        """
        Each element with the element of another stream that is valid at its time: tuples (element, version).

        The version is the last of the same key whose timestamp is not after the element's; None if there is
        none. Elements wait until the watermark says that all versions up to their time are there, and come
        out in the order of their times. Late elements come out of `.late`, or are counted. One version is
        kept for each key for ever.

        Args:
            versions: say what is valid from their timestamp on; keyed, as this stream is.
            latest: in processing time instead: nothing waits, and the version that came last is valid.
        """
        from asyncstream.pipeline.joined import as_of

        return as_of(self, versions, latest, name)
