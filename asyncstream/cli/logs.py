"""
The log of a run, on stderr, in the same lines as what the command itself says. Errors quote elements, which
may be anybody's: what a terminal acts on is written as an escape, and further lines of a message are set in.

A module that sets up logging of its own, as its handlers on the root logger, is left alone: only the level is
set, if one was asked for.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ("LEVELS", "Log", "logging_to_stderr", "say", "show", "tell")

LEVELS = ("debug", "info", "warning", "error", "critical")


def say(text: str) -> None:
    """
    Write a line of what the command has to say; further lines of the text are set in. It is lost where stderr
    takes no more: no job ends for that.
    """
    with suppress(OSError):
        print(f"asyncstream: {_set_in(text)}", file=sys.stderr, flush=True)


def show(line: str) -> None:
    """
    Print a line, with escapes for what is no text to be read: names and values in a checkpoint may hold line
    breaks, and what a terminal acts on.
    """
    print(_escaped(line))


def _escaped(text: str, kept: str = "") -> str:
    """The text with escapes for what is no text to be read, but for the characters that are `kept`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in kept else repr(each)[1:-1] for each in text)


def _set_in(text: str) -> str:
    return _escaped(text, "\n\t").replace("\n", "\n    ")


def _traceback(error: BaseException) -> str:
    return _escaped("".join(traceback.format_exception(error)).rstrip(), "\n\t")


def tell(error: BaseException, text: str | None = None, *, tracebacks: bool) -> None:
    """Say what a command failed with: the text; without one, what the error says by itself."""
    if tracebacks:
        with suppress(OSError):
            print(_traceback(error), file=sys.stderr)
    say("; ".join([str(error), *getattr(error, "__notes__", ())]) if text is None else text)


class Log(logging.Handler):
    """
    Writes records to stderr; without tracebacks, unless these are asked for. The last error that had one is
    `told`.
    """

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__()
        self.told: BaseException | None = None
        self._tracebacks = tracebacks

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        is_failure = record.name == "asyncstream.job" and record.levelno >= logging.ERROR
        if error is not None and is_failure and not self._tracebacks:
            return  # the command says it, when all has ended
        try:
            text = f"{record.levelname.lower()}: {record.name}: {_set_in(record.getMessage())}"
            if error is not None and self._tracebacks:
                self.told = error
                text += f"\n{_traceback(error)}"
            # stderr of now: who draws on the terminal has put another in its place
            print(text, file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


@contextmanager
def logging_to_stderr(level: str | None, *, tracebacks: bool) -> Iterator[Log]:
    """
    While the block runs, what is logged goes to stderr: from this level on, one of `LEVELS`; None: warnings
    and worse, or what a module has set. With `tracebacks`, those of errors are written, too.
    """
    root, ours, log = logging.getLogger(), logging.getLogger("asyncstream"), Log(tracebacks=tracebacks)
    levels = root.level, ours.level
    is_free = not root.handlers
    if is_free:
        root.addHandler(log)
    if level is not None:
        (root if is_free else ours).setLevel(level.upper())
    try:
        yield log
    finally:
        root.removeHandler(log)
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
