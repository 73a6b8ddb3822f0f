"""
What streams, consumers and subjects of NATS can be called. Of a wrong name the server says little, or
nothing: what is published to a subject with a wildcard in it is there under that very name.
"""

from __future__ import annotations

import re
from typing import Final

from asyncstream.validation import refuse, text

__all__ = ("checked_name", "checked_subject")

_NOT_IN_A_NAME: Final = re.compile(r"[\s.*>/\\]")

_WILDCARDS: Final = frozenset({"*", ">"})


def checked_name(argument: str, value: object) -> str:
    """`value`, if a stream or a consumer can be called so; raises `PipelineError`."""
    name = text(argument, value)
    if _NOT_IN_A_NAME.search(name):
        raise refuse(argument, "a name without blanks and any of . * > / \\", value)
    return name


def checked_subject(argument: str, value: object, *, wildcards: bool) -> str:
    """
    `value`, if it is a subject; raises `PipelineError`.

    Args:
        argument: what it is called.
        value: tokens with dots between them.
        wildcards: whether it may stand for many: "*" for any token, and ">", which comes last, for all that
            follow.
    """
    subject = text(argument, value)
    tokens = subject.split(".")
    if not all(tokens) or re.search(r"\s", subject) or ">" in tokens[:-1]:
        raise refuse(argument, "a subject: words with dots between them, and no blanks", value)
    if not wildcards and not _WILDCARDS.isdisjoint(tokens):
        raise refuse(argument, "one subject, without wildcards", value, "something is published to one")
    return subject
