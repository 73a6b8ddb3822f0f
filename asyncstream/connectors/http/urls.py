"""
URLs that are made from elements, and what of a URL may be shown.

What a template leaves open is data: whatever an element holds, it stays one segment of the path or one value
of the query. Percent-encoding does that, but for what names other places than itself: `.` and `..` mean the
same when encoded. Those are refused. So is what is no value: of None the text would be asked for, and nothing
in its place often means everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any
from urllib.parse import quote

from yarl import URL

from asyncstream.addresses import refuse_address, without_keys
from asyncstream.errors import MissingField
from asyncstream.state.keys import equals_itself

__all__ = ("UnsafeUrl", "begins_whole", "is_whole", "shown", "template")

_IN_PATHS = "%/:=&?~#+!$,;'@()*[]"  # what a template's own text may use for its structure

_BEGINNING = re.compile(r"https?://[^/?#{}]+/", re.IGNORECASE)

_HOST = re.compile(r"(https?://(?:[^/?#@]*@)?)([^/?#:@\[\]]+)(?=[/?#:])", re.IGNORECASE)
"""What comes before a host's name, and that, where it is whole."""


class UnsafeUrl(ValueError):
    """Raised when a value would make a URL point to another place than its template says."""


def template(text: str) -> Callable[[Any], URL]:
    """
    A function that fills the fields of `text` from an element; raises `PipelineError` if it is no template.
    """
    try:
        pieces = list(Formatter().parse(text))
    except ValueError as error:
        raise refuse_address("a template such as 'http://api/planes/{tailnum}'", text) from error
    if any(spec or conversion for _, _, spec, conversion in pieces):
        raise refuse_address("a template whose fields are plain names", text)
    try:
        parts = [(quote(_with_host(literal), safe=_IN_PATHS), field) for literal, field, _, _ in pieces]
    except ValueError as error:
        raise refuse_address("a template that can be encoded", text) from error

    own = _segments("".join(literal + ("x" if field is not None else "") for literal, field in parts))
    beside = _segments("".join(literal for literal, _ in parts))  # of the fields, in the same segments
    # letters and digits make another place only of what lacks nothing else of one, such as "%2{}"
    may_lead_away = any(
        rest and rest != segment and _OF_ELSEWHERE.issuperset(rest)
        for rest, segment in zip(beside, own, strict=True)
    )

    def fill(value: Any) -> URL:
        url = ""
        is_plain = True
        for literal, field in parts:
            url += literal
            if field is not None:
                # dict first: to ask for any other Mapping takes longer than all the rest
                try:
                    if field == "":
                        found = value
                    elif isinstance(value, (dict, Mapping)):
                        found = value[field]
                    else:
                        found = getattr(value, field)
                except (KeyError, AttributeError) as error:
                    raise MissingField(field, value) from error
                text = found if found.__class__ is str and found else _text(field, found)
                if text.isascii() and text.isalnum():  # as most keys, which need no encoding
                    url += text
                else:
                    is_plain = False
                    url += _encoded(text)
        if may_lead_away or not is_plain:
            _check(_segments(url), own)
        try:
            # encoded: or what looks like dots would be decoded and followed
            return URL(url, encoded=True)
        except ValueError:  # its text may quote the whole of it
            raise UnsafeUrl("what was made of the element is no URL") from None

    return fill


def _with_host(text: str) -> str:
    """The beginning of a URL with its host's name as the network knows it, which has ASCII only."""
    found = _HOST.match(text)
    if found is None or found[2].isascii():
        return text
    return f"{found[1]}{URL.build(scheme='http', host=found[2]).raw_host}{text[found.end() :]}"


def _text(field: str, found: Any) -> str:
    """The text of a value, if it is one; what it is else is not told, for it may be secret."""
    if found.__class__ is int:  # as most that are no texts
        return str(found)
    if found is None:
        is_what = "None"
    elif isinstance(found, bytes | bytearray | memoryview):
        is_what = f"{type(found).__name__}, and no text"
    elif not equals_itself(found):
        is_what = "NaN, or the like"
    elif text := str(found):
        return text
    else:
        is_what = "empty"
    what = f"the field {field!r}" if field else "the element"
    raise UnsafeUrl(
        f"{what} is {is_what}, by which the URL would ask for something else; where that may be, leave the "
        "element out before, or give a function of the element as url="
    )


def _encoded(text: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise UnsafeUrl(f"a value for the URL has no encoding: {error.reason}") from error


def _segments(url: str) -> list[str]:
    """The segments of the path of `url`, whose first two are what comes before it."""
    return url.partition("?")[0].partition("#")[0].split("/")


def _check(segments: list[str], own: list[str]) -> None:
    """Refuse segments that name no place of their own, unless the template itself says so."""
    for segment, template_segment in zip(segments, own, strict=True):
        if segment in _ELSEWHERE and segment != template_segment:
            raise UnsafeUrl(f"a part of the URL's path would be {segment!r}, which is another place")


_ELSEWHERE = frozenset({".", "..", "%2e", "%2E", ".%2e", ".%2E", "%2e.", "%2E.", "%2e%2e", "%2E%2E"})

_OF_ELSEWHERE = frozenset().union(*_ELSEWHERE)


def is_whole(url: URL) -> bool:
    """Whether `url` has a host that can be asked by HTTP; raises `ValueError` if its port is none."""
    return url.scheme in ("http", "https") and bool(url.host)  # to ask for which looks at the port, too


def begins_whole(text: str) -> bool:
    """Whether what a template makes is whole whatever is filled in: its host is its own."""
    beginning = _BEGINNING.match(text)
    try:
        return beginning is not None and is_whole(URL(beginning[0]))
    except ValueError:
        return False


def shown(url: URL | str) -> str:
    """
    `url` as it may be told: without user, password and fragment, without keys in its path, and of the query
    the names only.
    """
    try:
        known = URL(url)
        plain = known.with_user(None) if known.absolute else known
        text = without_keys(str(plain.with_query(None).with_fragment(None)))
        # a name without a value may itself be a key
        names = "&".join(f"{name}=…" if value else "…" for name, value in known.query.items())
    except ValueError:
        return "<not a URL>"
    return f"{text}?{names}" if names else text
