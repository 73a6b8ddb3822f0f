"""
The methods of a stream that make windows of it with no key of their own: of all elements, and after Storm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack, cast, overload

from asyncstream.operators.spec import no_key
from asyncstream.pipeline.handle import Handle
from asyncstream.validation import Duration, check_options
from asyncstream.windowing.assigners import TimeKind, WindowAssigner
from asyncstream.windowing.policies import EXPIRED, SKIPPED, Extent, PolicyWindow, policy_spec

if TYPE_CHECKING:
    from asyncstream.pipeline.keyed import PolicyResults, WindowedStream
    from asyncstream.pipeline.stream import Stream

__all__ = ("Windowing",)

T = TypeVar("T")
U = TypeVar("U")


class _PolicyOptions(TypedDict, total=False):
    tumbling: bool
    time: TimeKind
    lag: Duration
    watermark_interval: Duration
    streams: Sequence[str] | None
    stream_of: Callable[[Any], str] | None
    idle_after: Duration | None
    late: str


_OPTIONS: Final = ("function", *_PolicyOptions.__annotations__)


class Windowing(Handle[T]):
    """The methods of a stream that make windows of it."""

    def window_all(self, assigner: WindowAssigner) -> WindowedStream[None, T]:
        """Group all elements by windows, whatever their key."""
        return cast("Stream[T]", self).key_by(no_key).window(assigner)

    @overload
    def policy_window(
        self,
        length: Extent,
        slide: Extent | None = None,
        *,
        function: None = None,
        name: str | None = None,
        **options: Unpack[_PolicyOptions],
    ) -> PolicyResults[PolicyWindow[T]]: ...
    @overload
    def policy_window(
        self,
        length: Extent,
        slide: Extent | None = None,
        *,
        function: Callable[[PolicyWindow[T]], U],
        name: str | None = None,
        **options: Unpack[_PolicyOptions],
    ) -> PolicyResults[U]: ...
    def policy_window(
        self, length: Extent, slide: Extent | None = None, *, name: str | None = None, **options: Any
    ) -> PolicyResults[Any]:
        """
        Windows after Storm: the last `length` of the stream's elements, every `slide`; of each key's, if the
        stream has keys.

        Args:
            length: an `int` is a number of elements, a `timedelta` a length of time.
            slide: likewise; None: a window ends with every element.
            options: `tumbling`, `time`, `lag`, `watermark_interval`, `idle_after`, `function` and more:
                see `asyncstream.windowing.policies.policy_window`.
        """
        from asyncstream.pipeline.keyed import PolicyResults

        check_options("policy_window", options, _OPTIONS)
        spec = policy_spec(length, slide, self._key(), options)
        output = self._step("policy_window", name, spec, {"length": length, "slide": slide, **options})
        return PolicyResults(self._graph, output, (spec.settings.late, SKIPPED, EXPIRED))
