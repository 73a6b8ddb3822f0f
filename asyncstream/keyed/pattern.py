"""
Patterns: what a sequence of elements has to look like.

    Pattern.begin("small", lambda card: card["amount"] < 1)
        .followed_by("large", lambda card: card["amount"] > 500)
        .within(timedelta(minutes=5))

A pattern is a value: each method gives a new one, and one may be used for any number of streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from asyncstream.errors import PipelineError
from asyncstream.shown import shown_ms, shown_value
from asyncstream.validation import (
    Duration,
    count,
    duration_ms,
    flag,
    function,
    named_fields,
    refuse,
    selector,
    text,
)

__all__ = ("Given", "Match", "Pattern", "Stage")

K = TypeVar("K")
T = TypeVar("T")

Given: TypeAlias = Callable[[Any, Mapping[str, Sequence[Any]]], object]
"""A condition on an element and on what was taken before it, by stage."""


class Match(NamedTuple, Generic[K, T]):
    """
    Elements that look like a pattern; from `.timed_out`, like the beginning of one.

    Attributes:
        key: whose they are.
        elements: by stage, each a list in the order of event time; without stages that took none.
        start_ms: of the first of them, milliseconds since the epoch.
        end_ms: of the last of them.
    """

    key: K
    elements: dict[str, list[T]]
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class Stage:
    """
    One stage of a pattern: elements that meet one condition.

    Attributes:
        name: of the stage.
        where: the condition on an element; None: on what was taken before as well.
        given: that condition; None: there is `where`.
        strict: no other element comes between it and the stage before.
        least, most: how many elements; None: any number.
        consecutive: no other element comes between these.
        optional: or none at all.
        absent: there must be no such element: `strict`, right behind the stage before; else until the next
            stage takes one, or until the time of the pattern is over.
    """

    name: str
    where: Callable[[Any], object] | None
    given: Given | None
    strict: bool = False
    least: int = 1
    most: int | None = 1
    consecutive: bool = False
    optional: bool = False
    absent: bool = False

    @property
    def verb(self) -> str:
        """The method that a stage behind another is made by."""
        return ("not_" if self.absent else "") + ("next" if self.strict else "followed_by")


@dataclass(frozen=True)
class Pattern(Generic[T]):
    """
    A sequence of conditions; begin one with `Pattern.begin`.

    Attributes:
        stages: in their order, at least one.
        within_ms: how long a match may be: less than this lies between the first and the last element.
    """

    stages: tuple[Stage, ...]
    within_ms: int | None = None

    def __post_init__(self) -> None:
        stages = self.stages if isinstance(self.stages, tuple) else ()
        if not stages or not all(isinstance(one, Stage) for one in stages):
            advice = "begin a pattern with Pattern.begin(name, condition)"
            raise refuse("stages", "a tuple of at least one Stage", self.stages, advice)
        if self.within_ms is not None:
            count("within_ms", self.within_ms)

    def __repr__(self) -> str:
        first, *others = self.stages
        written = [_written("begin", first), *(_written(stage.verb, stage) for stage in others)]
        if self.within_ms is not None:
            written.append(f"within({shown_ms(self.within_ms)})")
        return f"{type(self).__name__}.{'.'.join(written)}"

    @classmethod
    def begin(
        cls, name: str, where: Callable[[T], object] | str | None = None, *, given: Given | None = None
    ) -> Pattern[T]:
        """
        A pattern of one stage: an element for which `where` is true.

        Args:
            name: of the stage, under which a `Match` has its elements.
            where: a function of the element, or the name of a field.
            given: instead of it, a function of the element and of those taken before, by stage:
                `lambda trade, taken: trade["price"] > taken["first"][-1]["price"]`.
        """
        return cls((_stage(name, where, given, strict=True),))

    def next(
        self, name: str, where: Callable[[T], object] | str | None = None, *, given: Given | None = None
    ) -> Pattern[T]:
        """Then, as the very next element of the key, one for which `where` is true."""
        return self._then(_stage(name, where, given, strict=True))

    def followed_by(
        self, name: str, where: Callable[[T], object] | str | None = None, *, given: Given | None = None
    ) -> Pattern[T]:
        """Then the next element for which `where` is true; others may come between."""
        return self._then(_stage(name, where, given, strict=False))

    def not_next(
        self, name: str, where: Callable[[T], object] | str | None = None, *, given: Given | None = None
    ) -> Pattern[T]:
        """Then, as the very next element of the key, none for which `where` is true; a stage must follow."""
        return self._then(_stage(name, where, given, strict=True, absent=True))

    def not_followed_by(
        self, name: str, where: Callable[[T], object] | str | None = None, *, given: Given | None = None
    ) -> Pattern[T]:
        """
        Then none for which `where` is true, before the next stage takes an element.

        If no stage follows, there is a match when the time of `within` is over without such an element.
        """
        return self._then(_stage(name, where, given, strict=False, absent=True))

    def optional(self) -> Pattern[T]:
        """The last stage may also take no element at all: there are matches with it and without it."""
        last = self.stages[-1]
        if last.absent or (len(self.stages) > 1 and self.stages[-2].absent):
            raise PipelineError(
                f"stage {last.name!r} cannot be optional: it is, or follows, what must be absent; "
                "use two patterns, one with it and one without"
            )
        return replace(self, stages=(*self.stages[:-1], replace(last, optional=True)))

    def times(self, least: int, most: int | None = None, *, consecutive: bool = False) -> Pattern[T]:
        """
        The last stage takes several elements.

        Args:
            least: so many, at least 1.
            most: up to so many: with each number there is a match. None: exactly `least`.
            consecutive: no other element may come between them.
        """
        least = count("least of times", least)
        most = least if most is None else count("most of times", most, least=least)
        return self._repeated(least, most, consecutive)

    def at_least(self, least: int, *, consecutive: bool = False) -> Pattern[T]:
        """The last stage takes `least` elements or more; with each number there is a match."""
        return self._repeated(count("least of at_least", least), None, consecutive)

    def within(self, duration: Duration) -> Pattern[T]:
        """
        The last element comes less than this after the first.

        Without it, what has begun is remembered for ever.

        Args:
            duration: in event time; a `timedelta` or seconds.
        """
        return replace(self, within_ms=duration_ms("within", duration))

    def check(self) -> None:
        """
        Refuse a pattern that ends in something that could never be told.

        Raises:
            PipelineError: it ends with `not_next`, or with `not_followed_by` and no `within`.
        """
        last = self.stages[-1]
        if last.absent and last.strict:
            raise PipelineError(f"the pattern ends with not_next {last.name!r}; add the stage that follows")
        if last.absent and self.within_ms is None:
            raise PipelineError(
                f"the pattern ends with not_followed_by {last.name!r}; say with .within(...) for how long"
            )

    def _then(self, stage: Stage) -> Pattern[T]:
        if any(stage.name == other.name for other in self.stages):
            raise PipelineError(f"stages of a pattern need names of their own, got {stage.name!r} twice")
        if stage.absent and self.stages[-1].optional:
            raise PipelineError(
                f"stage {stage.name!r} cannot be absent behind the optional {self.stages[-1].name!r}; "
                "use two patterns, one with it and one without"
            )
        return replace(self, stages=(*self.stages, stage))

    def _repeated(self, least: int, most: int | None, consecutive: bool) -> Pattern[T]:
        last = self.stages[-1]
        if last.absent:
            raise PipelineError(f"stage {last.name!r} must be absent; it takes no elements")
        if (last.least, last.most) != (1, 1):
            raise PipelineError(f"stage {last.name!r} has been told how many elements it takes; say it once")
        last = replace(last, least=least, most=most, consecutive=flag("consecutive", consecutive))
        return replace(self, stages=(*self.stages[:-1], last))


def _stage(name: str, where: Any, given: Given | None, *, strict: bool, absent: bool = False) -> Stage:
    text("name of a stage", name)
    if (where is None) == (given is None):
        raise refuse(f"stage {name!r}", "either where or given", (where, given))
    if given is not None:
        given = function("given", given, "element", "before")
        return Stage(name, None, given, strict, absent=absent)
    return Stage(name, selector("where", where), None, strict, absent=absent)


def _written(verb: str, stage: Stage) -> str:
    """A stage as it was written, conditions by what they are called."""
    if stage.where is None:
        condition = f"given={shown_value('given', stage.given)}"
    else:
        condition = shown_value("where", named_fields(stage.where) or stage.where)
    written = f"{verb}({stage.name!r}, {condition})"
    consecutive = ", consecutive=True" if stage.consecutive else ""
    if stage.most is None:
        written += f".at_least({stage.least}{consecutive})"
    elif stage.most > 1:
        several = stage.most if stage.least == stage.most else f"{stage.least}, {stage.most}"
        written += f".times({several}{consecutive})"
    return written + (".optional()" if stage.optional else "")
