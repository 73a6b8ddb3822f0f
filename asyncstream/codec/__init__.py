"""
Values to bytes and back, for snapshots: the same value and the same types, or an error that says where.

`JsonCodec` is the default. Most of what is snapshotted is plain JSON and goes through orjson as it is.
What JSON has no word for is written as an object of one member whose name begins with `$`, which is the
only rule a reader has to know:

    (1, b"x")  ->  {"$tuple":[1,{"$bytes":"eA=="}]}

A plain dict that happens to look like that is written as `$dict`. Classes are named, never stored. Reading
looks a name up among the classes that were registered and in the modules that are imported already; it
imports nothing, so that bytes cannot make a module run. Then it fills an instance with the stored parts. Of
the class's own code nothing is called (no `__init__`, no `__new__`, no `__reduce__`, no validator), and no
class is filled that is not an enum, a dataclass, a NamedTuple, an attrs class, a pydantic model or an
exception. So a pydantic model comes back as it was, also where it would not be valid: it was validated, or
made without that on purpose, when it was made.

What is not kept: that two places hold the same object (each gets its own), and of an exception its traceback
and context, and the object that an `AttributeError` was about. `PickleCodec` keeps nearly everything and runs
whatever the bytes say; it has to be asked for.

Reading order: `base`, `json` (the fast path), `packing` and `unpacking` (the careful one), `classes`,
`fields`, `enums`, `library`, `arrays`, `pickled` and `records`, `own` (a user's), `choice`, `named` (which
classes bytes name).
"""

from __future__ import annotations

from asyncstream.codec.base import Codec, ForeignError
from asyncstream.codec.choice import codec
from asyncstream.codec.json import JsonCodec
from asyncstream.codec.named import NamedClass, named_classes
from asyncstream.codec.pickled import PickleCodec

__all__ = ("Codec", "ForeignError", "JsonCodec", "NamedClass", "PickleCodec", "codec", "named_classes")
