"""
What user functions ask of their context, their state and their `out` in other frameworks, and what it is
called here.

It is looked up once a function has failed over it: with a `__getattr__`, as streams have for theirs, Python
reads the attributes that are there more slowly, and these are read for each element.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Final

__all__ = ("WORDS", "by_word", "word_for")


def by_word(*pairs: tuple[str, str]) -> Mapping[str, str]:
    """What each word is called here, of (words, what they are called)."""
    return {word: here for words, here in pairs for word in words.split()}


_EMIT: Final = "out(value)"

_OF_CONTEXTS: Final = by_word(
    ("timerservice settimer registertimer registereventtimetimer", "ctx.register_event_timer(timestamp)"),
    ("registerprocessingtimetimer schedule", "ctx.register_processing_timer(timestamp)"),
    ("deleteeventtimetimer deletetimer", "ctx.delete_event_timer(timestamp)"),
    ("deleteprocessingtimetimer", "ctx.delete_processing_timer(timestamp)"),
    ("currentwatermark getcurrentwatermark", "ctx.watermark"),
    ("currentprocessingtime getcurrentprocessingtime", "ctx.now_ms"),
)

_OF_FUNCTIONS: Final = by_word(
    ("output sideoutput", "ctx.side(tag, value)"),
    ("emit collect forward", _EMIT),
)

_GET_STATE: Final = (
    "getstate getvaluestate getliststate getmapstate getreducingstate getaggregatingstate globalstate"
)

WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "KeyedContext": {
        **_OF_CONTEXTS,
        **_OF_FUNCTIONS,
        **by_word(
            ("getcurrentkey currentkey", "ctx.key"),
            (_GET_STATE, "ctx.state(descriptor)"),
            ("timedomain", "ctx.domain"),
        ),
    },
    "BroadcastContext": by_word(("getbroadcaststate", "ctx.broadcast_state(descriptor)")),
    "WindowContext": {
        **by_word(("currentwatermark", "ctx.watermark"), ("currentprocessingtime", "ctx.now_ms")),
        **_OF_FUNCTIONS,
        **by_word((_GET_STATE, "ctx.key_state(descriptor)")),
    },
    "TriggerContext": {
        **_OF_CONTEXTS,
        **by_word(
            ("getpartitionedstate", "ctx.state(descriptor)"),
            ("mergepartitionedstate", "ctx.merge_state(descriptor)"),
        ),
    },
    "ValueState": by_word(("value read", "state.get()"), ("update write put", "state.set(value)")),
    "ListState": by_word(
        ("update put", "state.set(values)"),
        ("addall", "state.extend(values)"),
        ("append", "state.add(value)"),
    ),
    "MapState": by_word(
        ("set update", "state.put(key, value)"),
        ("delete pop", "state.remove(key)"),
        ("contains haskey", "key in state"),
        ("keys", "list(state)"),
        ("values entries iterator", "state.items()"),
        ("isempty", "len(state) == 0"),
    ),
    "ReducingState": by_word(("value", "state.get()"), ("update set", "state.add(value)")),
    "AggregatingState": by_word(("value", "state.get()"), ("update set", "state.add(value)")),
    "BufferedEmitter.emit": by_word(("collect emit output send append", _EMIT)),
    "KeyedFunction": by_word(("getruntimecontext", "the ctx that open is given")),
}
"""
By the class that has another word for it, or the function: words in small letters, without "_", so that it
does not matter how they are written elsewhere.
"""


def word_for(error: BaseException) -> str | None:
    """What an attribute is called here that was missed; None: it is no such error, or nothing is known."""
    if not isinstance(error, AttributeError) or not isinstance(error.name, str):
        return None
    missed, of = error.name.replace("_", "").lower(), error.obj
    kinds = [of] if isinstance(of, FunctionType) else type(of).__mro__
    for kind in kinds:
        if missed in WORDS.get(kind.__qualname__, ()) and kind.__module__.startswith("asyncstream."):
            return WORDS[kind.__qualname__][missed]
    return None
