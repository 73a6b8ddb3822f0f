"""
Every exception of the package, split by whose doing it is.

`AsyncStreamError` is the root. Below it: `PipelineError` (your plan), `UserFunctionError` and its
relatives (your function, or the service it calls), `SourceError` and `SinkError` (the outside world),
`CheckpointError` and `CodecError` (what is kept on disk), `InternalError` (ours: please report).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from inspect import isroutine
from itertools import islice
from typing import Any, Final

from asyncstream.other_words import word_for

__all__ = (
    "CALL_ERRORS",
    "AsyncStreamError",
    "CallTimeout",
    "CheckpointError",
    "CircuitOpen",
    "CodecError",
    "DamagedCache",
    "DamagedCheckpoint",
    "HttpError",
    "InternalError",
    "JobStopped",
    "LeaseHeld",
    "LeaseLost",
    "MissingExtra",
    "MissingField",
    "PipelineError",
    "RetriesExhausted",
    "SinkBroken",
    "SinkError",
    "SourceError",
    "StateError",
    "UserFunctionError",
    "describe_error",
    "encodable",
    "module_of",
    "naming_step",
    "over_elements",
    "safe_repr",
    "tells_its_step",
    "there_are",
    "told_as",
)

_LONGEST: Final = 10_000
"""Characters of an error's text that are told: more than what Java or pydantic say of one fault."""

_ADDRESS: Final = re.compile(r" at 0x[0-9A-Fa-f]+(?=[ >])")
"""Where an object is in memory, as `repr` says it of what has no other."""

_PASSWORD: Final = re.compile(r"(?<=://)[^\s/:@'\"]*:[^\s/'\"]+(?=@)")
"""User and password in a URL."""

_LONGEST_BODY: Final = 4096
"""Bytes of a body that an error has: more than services say of one request."""


class AsyncStreamError(Exception):
    """Root of all exceptions that this package raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # pickled by what they say, not by the arguments that it was made from
        return _rebuilt, (type(self), self.args, vars(self))


class PipelineError(AsyncStreamError, ValueError):
    """Raised when a pipeline is described wrongly: an argument, a name, a missing step."""


class MissingExtra(AsyncStreamError, ImportError):
    """
    Raised when a feature needs an optional dependency that is not installed, or cannot be imported; names the
    extra, and says what the import did.
    """

    def __init__(self, feature: str, extra: str, error: ImportError | None = None) -> None:
        why = "" if error is None else f" ({describe_error(error)})"
        super().__init__(f"{feature} needs the extra [{extra}]: pip install 'asyncstream[{extra}]'{why}")
        self.extra = extra


class UserFunctionError(AsyncStreamError):
    """
    Raised when a function of yours raised; the original is `__cause__`.

    Attributes:
        step: name of the step whose function it was.
        element: the element that the function was given, or the timer that fired; None if it was neither, as
            the text says.
    """

    def __init__(self, step: str, element: object, error: BaseException, *, when: str | None = None) -> None:
        when = when or f"on element {safe_repr(element)}"
        text = describe_error(error)
        here = word_for(error)
        advice = f"here it is {here}" if here else next((todo for said, todo in _ADVICE if said in text), "")
        super().__init__(f"step {step!r}: {text}{'; ' if advice else ''}{advice}, {when}")
        self.step = step
        self.element = element


_OTHER_LOOP: Final = (
    "what was made in another event loop serves that one only: make it in the job's, as in open() of an "
    "AsyncFunction"
)

_ADVICE: Final = (
    ("RuntimeError: Event loop is closed", _OTHER_LOOP),
    ("is bound to a different event loop", _OTHER_LOOP),
    ("attached to a different loop", _OTHER_LOOP),
    ("can't be used in 'await' expression", "only what a call of an async def gives can be awaited"),
)
"""What to do where things of asyncio are mixed up, by what Python's error says."""


class MissingField(AsyncStreamError, KeyError, AttributeError):
    """
    Raised when an element has no field of the name that a step was given.

    Attributes:
        field: the name.
    """

    def __init__(self, field: str, element: object) -> None:
        names, (outer, dot, _) = _field_names(element), field.partition(".")
        advice = ""
        if dot and outer in names:
            advice = "; a dot is part of a name: for a field within a field, give a function of the element"
        elif any(word in names for word in re.findall(r"\w+", field)):  # "a > 1", where there is an 'a'
            advice = "; a text is a name, and nothing is computed: for that, give a function of the element"
        super().__init__(f"no field {field!r} in a {type(element).__name__}; {there_are(element)}{advice}")
        self.field = field

    __str__ = Exception.__str__  # that of KeyError would quote it


class CallTimeout(AsyncStreamError, TimeoutError):
    """Raised when a call did not end within the step's timeout, all its attempts taken together."""


class RetriesExhausted(AsyncStreamError):
    """
    Raised when a call still failed at its last attempt; the last failure is `__cause__`.

    Attributes:
        attempts: how many times the function was called; at least 1.
    """

    def __init__(self, attempts: int, error: BaseException | None, why: str = "") -> None:
        reason = "its result was refused" if error is None else describe_error(error)
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"gave up after {times}{why}: {reason}")
        self.attempts = attempts


class CircuitOpen(AsyncStreamError):
    """
    Raised when a circuit breaker refuses a call because the service behind it fails.

    Attributes:
        retry_after: seconds until the breaker lets a call through to try again.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the circuit breaker is open for another {retry_after:.3g} s")
        self.retry_after = retry_after


class HttpError(AsyncStreamError):
    """
    Raised when an HTTP service gave no usable answer; what went wrong below HTTP is `__cause__`.

    Attributes:
        url: what was asked for.
        status: the answer's status code, or None if no whole answer came.
        retry_after: the server's `Retry-After` header as it came (seconds or an HTTP date), or None.
        retryable: whether the same request may well succeed later.
        body: what an `HttpLookup` was given in place of an answer, decompressed, its first 4 KiB; empty where
            nothing was read. It is in no text and no log, for it may quote the request.
    """

    body: bytes = b""

    def __init__(
        self,
        url: str,
        status: int | None,
        reason: str,
        *,
        retryable: bool,
        retry_after: str | None = None,
        body: bytes = b"",
    ) -> None:
        super().__init__(f"{url}: {reason}" if status is None else f"{url}: {status} {reason}")
        self.url = url
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after
        self.body = body[:_LONGEST_BODY]


class SourceError(AsyncStreamError):
    """
    Raised when a source cannot go on: a missing file, a malformed line.

    Attributes:
        step: name of the step that it is in a job; None: it is in none.
    """

    step: str | None = None


class SinkError(AsyncStreamError):
    """
    Raised when a sink could not write what it was given.

    Attributes:
        step: name of the step that it is in a job; None: it is in none.
    """

    step: str | None = None


class SinkBroken(SinkError):
    """
    Raised when a sink cannot go on in this run: what it was given may be gone, its server is away, or another
    job writes now.

    It ends the job, whatever `on_error=` of the sink says, also from within a checkpoint. The next run goes
    on from the last checkpoint.
    """


class CheckpointError(AsyncStreamError):
    """Raised when a snapshot cannot be taken, stored or restored."""


class LeaseHeld(CheckpointError):
    """Raised when another job writes to the store, or the sink, that a job wants to write to."""


class LeaseLost(CheckpointError):
    """Raised when another job has taken over, so that this one may write no more: it ends at once."""


class DamagedCheckpoint(CheckpointError):
    """Raised when a stored checkpoint is cut short, changed or something else altogether."""


class CodecError(CheckpointError):
    """
    Raised when a value cannot be turned into bytes and back without losing something.

    Attributes:
        path: where in the value that is, as one would write it in Python: `['user'].name[0]`; "": in itself.
        reason: what cannot be done, without the path.
    """

    def __init__(self, reason: str, path: str | None = None) -> None:
        super().__init__(reason if path is None else f"value{path}: {reason}")
        self.path = path or ""
        self.reason = reason


class StateError(AsyncStreamError):
    """Raised when state cannot be kept where it belongs: on a disk that is full, or lost."""


class DamagedCache(StateError):
    """Raised when the file of a cache is cut short, changed or something else altogether."""


class JobStopped(AsyncStreamError):
    """Raised when an element is submitted to a job that accepts no more: drained, stopped or failed."""


CALL_ERRORS: Final = (CallTimeout, CircuitOpen, HttpError, MissingField, RetriesExhausted)
"""What a function of the user's fails with by means of this package, which knows no step there."""


class InternalError(AsyncStreamError):
    """Raised when an invariant of this package broke. It is a bug: please report it."""


def _rebuilt(
    kind: type[AsyncStreamError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> AsyncStreamError:
    error = kind.__new__(kind, *args)
    vars(error).update(attributes)
    return error


def there_are(element: object) -> str:
    """Which fields an element has, for the error about one that it has not."""
    return f"there are: {', '.join(map(repr, _field_names(element))) or 'none'}"


def _field_names(element: object) -> Sequence[object]:
    """The names that can be asked of an element: keys of a mapping, public attributes of anything else."""
    if isinstance(element, Mapping):
        return list(islice(element, 50))
    try:
        names = [name for name in dir(element) if not name.startswith("_")]
        return [name for name in names if not isroutine(getattr(type(element), name, None))][:50]
    except Exception:  # of a class with a `__dir__` of its own
        return []


def module_of(extra: str, name: str, feature: str) -> Any:
    """The module of this name, which is of an extra; raises `MissingExtra` if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra(feature, extra, error) from error


def tells_its_step(error: BaseException) -> bool:
    """Whether an error out of the code of a step goes up as it is: one of ours, but for those of calls."""
    return isinstance(error, AsyncStreamError) and not isinstance(error, CALL_ERRORS)


@contextmanager
def naming_step(step: str, *kinds: type[AsyncStreamError]) -> Iterator[None]:
    """One of these of this block, raised by what does not know its step, comes out naming that."""
    try:
        yield
    except kinds as error:
        named = next(kind for kind in kinds if isinstance(error, kind))(f"step {step!r}: {error}")
        if isinstance(named, SourceError | SinkError):
            named.step = step
        raise named from error


@contextmanager
def told_as(kind: type[AsyncStreamError], doing: str, *errors: type[Exception]) -> Iterator[None]:
    """
    What is raised in this block, and is one of `errors`, comes out as a `kind` that says what was done; what
    is a `kind` already comes out as it is.
    """
    try:
        yield
    except kind:
        raise
    except errors as error:
        raise kind(f"cannot {doing}: {describe_error(error)}") from error


@contextmanager
def over_elements(is_over_elements: Callable[[BaseException], bool]) -> Iterator[None]:
    """
    A `SinkError` of this block whose cause is not over the elements that are written comes out as
    `SinkBroken`: `on_error=` would leave out all that come while a server is away.
    """
    try:
        yield
    except SinkError as error:
        cause = error.__cause__
        if isinstance(error, SinkBroken) or (cause is not None and is_over_elements(cause)):
            raise
        raise SinkBroken(str(error)) from cause


def describe_error(error: BaseException) -> str:
    """
    The type and text of any exception, also of one whose `__str__` raises; of a text of more than 10,000
    characters the beginning, and how many follow. What has no bytes in UTF-8 is escaped (`encodable`).
    """
    try:
        text = str(error)
    except Exception:
        text = "<its message could not be read>"
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}… and {len(text) - _LONGEST} characters more"
    name = type(error).__name__
    return encodable(f"{name}: {text}" if text else name)


def encodable(text: str) -> str:
    """
    The text with escapes for what has no bytes in UTF-8, such as parts of the name of a file that is in
    another encoding: logs, columns and other processes can have no such text.
    """
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def safe_repr(value: object, limit: int = 200) -> str:
    """
    `repr(value)` cut to `limit` characters; never raises. Without addresses in memory, of which each run has
    others, and which push out of sight what a function is called; and without the passwords of URLs.
    """
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__} whose repr failed>"
    if " at 0x" in text:
        text = _ADDRESS.sub("", text)
    if "://" in text:
        text = _PASSWORD.sub("…", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
