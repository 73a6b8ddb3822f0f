"""
What a failed job says of itself, without Spark's part.

An error of a task passes through Spark as text: PySpark's words, those of ours, and forty lines of Java. Ours
begin with the name of their class, and end where Java's begin.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from asyncstream.validation import refuse

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

__all__ = ("failure_in", "failure_text", "reason_of")

_OURS: Final = re.compile(r"^.*?asyncstream\.errors\.(?=\w+: )", re.MULTILINE)

_JAVA: Final = re.compile(
    r"^(?:\tat | ?SQLSTATE: |\n?Driver stacktrace:|\n?JVM stacktrace:|=== Streaming Query ===)", re.MULTILINE
)

_JAVA_CLASS: Final = re.compile(r"^(?:\w+\.)+\w+: (?=\[)")
"""Of an error that has a name by which Spark's documents know it."""


def failure_text(failed: BaseException | StreamingQuery) -> str:
    """
    Why a job has failed: step, error and element first, then the traceback of your function.

        print(failure_text(query))
        UserFunctionError: step 'planes': LookupError: no plane 3, on element {'id': 3}
        Traceback (most recent call last): ...

    Args:
        failed: what an action has raised, such as `collect()`; or a query that has ended.

    Returns:
        What is not of asyncstream as Spark says it, without the lines of Java; of a query that has not failed
        an empty text.

    Raises:
        PipelineError: if it is neither.
    """
    if not isinstance(failed, BaseException) and not hasattr(failed, "awaitTermination"):
        raise refuse("failed", "an exception, or a StreamingQuery", failed)
    error: Any = failed if isinstance(failed, BaseException) else failed.exception()
    return "" if error is None else failure_in(str(error))


def failure_in(text: str) -> str:
    """As `failure_text`, of what Spark says."""
    found = list(_OURS.finditer(text))
    ours = text[found[0].end() :] if found else text
    java = _JAVA.search(ours)
    return (ours if java is None else ours[: java.start()]).strip()


def reason_of(error: BaseException) -> str:
    """In a line, why Spark could not do something."""
    told = failure_in(str(error)).splitlines() or [type(error).__name__]
    # of an error that PySpark does not know, the first line only says that there is one
    line = told[min(1, len(told) - 1)] if told[0].startswith("An error occurred while calling") else told[0]
    return _JAVA_CLASS.sub("", line.removeprefix(": ").partition(" SQLSTATE: ")[0]).removesuffix(".")
