"""
What is said to those who call a method of a stream one step too early: where the method is.

Nothing else is missed as often as a `key_by` before windows, or an `aggregate` behind them.
"""

from __future__ import annotations

__all__ = ("no_attribute",)


def no_attribute(of: object, name: str) -> AttributeError:
    """
    The error for an attribute that `of` has not, to be raised by the caller.

    Args:
        of: a stream, or what stands between two streams, such as windows without a function.
        name: of the attribute.
    """
    # they import the module of streams, which imports this one
    from asyncstream.pipeline.joined import Join
    from asyncstream.pipeline.keyed import KeyedStream, WindowedStream
    from asyncstream.pipeline.stream import Stream

    advice = ""
    if not name.startswith("_"):
        if isinstance(of, WindowedStream):
            if hasattr(KeyedStream, name):
                advice = "say first what to compute of the windows: .aggregate(...), .reduce(...), .collect()"
        elif isinstance(of, Join):
            if hasattr(Stream, name):
                advice = "say first which elements belong together: .within(before, after) or .window(...)"
        elif hasattr(KeyedStream, name):
            advice = "put .key_by(...) before it"
            if name == "window":
                advice += ", or .window_all(...) in its place for windows of all elements together"
        elif hasattr(WindowedStream, name):
            is_keyed = isinstance(of, KeyedStream)
            advice = f"put {'' if is_keyed else '.key_by(...) and '}.window(...) before it"
    text = f"{type(of).__name__!r} object has no attribute {name!r}"
    return AttributeError(f"{text}; {advice}" if advice else text, name=name, obj=of)
