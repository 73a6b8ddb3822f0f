"""
Options that a connector passes through to its client: those that there are, but for its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from asyncstream.errors import PipelineError
from asyncstream.validation import refuse

__all__ = ("Options", "passed_through")

Options: TypeAlias = Mapping[str, Any]
"""What is passed through to a client: TLS, who one is, how long to wait."""


def passed_through(
    options: Options | None, client: Callable[..., Any], name: str, ours: frozenset[str]
) -> dict[str, Any]:
    """
    What is to be passed through.

    Args:
        options: by name; None: none.
        client: what takes them.
        name: of the client, for messages.
        ours: names that have an argument of their own, or mean that nothing is lost.

    Raises:
        PipelineError: if `options` has one of these, or one that there is not.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise refuse("client", "a mapping of the client's options", options)
    known = inspect.signature(client).parameters.keys() - {"self"}
    for option in options:
        if option not in known:
            raise refuse("client", f"options of {name}", option)
        if option in ours:
            raise PipelineError(
                f"client: {option!r} cannot be passed through: it has its own argument, or decides what is "
                "lost or duplicated; leave it out"
            )
    return dict(options)
