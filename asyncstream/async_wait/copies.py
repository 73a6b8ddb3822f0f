"""
What calls are given in place of their elements, to do with as they like.
"""

from __future__ import annotations

import logging
from typing import Any

from asyncstream.errors import describe_error
from asyncstream.state.capture import detached

__all__ = ("Copies",)

_log = logging.getLogger("asyncstream.async_wait")


class Copies:
    """
    Copies the elements of one step. What cannot be copied it `refuses`; otherwise it is given as it is, and
    that is said once.
    """

    def __init__(self, step: str, refuses: bool) -> None:
        self._step = step
        self._refuses = refuses
        self._told = False

    def of(self, value: Any) -> Any:
        """A copy of an element; raises `TypeError` if it cannot be copied, and that is an error."""
        try:
            return detached(value)
        except Exception as error:
            if self._refuses:
                raise TypeError(
                    f"copy_input: the element cannot be copied: {describe_error(error)}"
                ) from error
            if not self._told:
                self._told = True
                _log.warning(
                    "step %r: elements of type %s cannot be copied; a call that changes one changes what "
                    "checkpoints keep of it (copy_input=False says that it does not)",
                    self._step,
                    type(value).__name__,
                )
            return value
