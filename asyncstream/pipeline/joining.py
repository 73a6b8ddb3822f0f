"""
The methods of a stream that bring it together with others, element by element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from asyncstream.plan import Graph, Output

if TYPE_CHECKING:
    from asyncstream.pipeline.joined import Broadcast, Connected, ConnectedToBroadcast, Several
    from asyncstream.pipeline.stream import Stream

__all__ = ("Joining",)

T = TypeVar("T")
U = TypeVar("U")


class Joining(Generic[T]):
    """The methods of a stream that bring it together with others."""

    _graph: Graph
    _output: Output

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
        from asyncstream.pipeline.joined import connected  # which is made of streams

        return connected(self, others)

    def broadcast(self) -> Broadcast[T]:
        """
        This stream for all keys of another: `events.connect(rules.broadcast()).process(...)`.

        What it leaves in the broadcast state is kept in memory and whole in each checkpoint, and grows until
        your function removes what is done.
        """
        from asyncstream.pipeline.joined import Broadcast

        return Broadcast(self)
