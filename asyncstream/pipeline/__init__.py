"""The fluent face of the package: `Pipeline` and the streams that come out of its steps."""

from asyncstream.pipeline.connected import Broadcast, Connected, ConnectedToBroadcast, Several
from asyncstream.pipeline.ending import FrameResult, StreamEnd
from asyncstream.pipeline.joined import AsOf, CoGroup, Join, Joined
from asyncstream.pipeline.keyed import KeyedStream, PolicyResults, WindowedStream, WindowResults
from asyncstream.pipeline.per_key import KeyedResults, PatternMatches
from asyncstream.pipeline.pipeline import Pipeline
from asyncstream.pipeline.starting import SourceStream
from asyncstream.pipeline.stream import AsyncResults, SideStreams, Stream
from asyncstream.pipeline.tabling import StreamTable

__all__ = (
    "AsOf",
    "AsyncResults",
    "Broadcast",
    "CoGroup",
    "Connected",
    "ConnectedToBroadcast",
    "FrameResult",
    "KeyedResults",
    "Join",
    "Joined",
    "KeyedStream",
    "PatternMatches",
    "Pipeline",
    "PolicyResults",
    "Several",
    "SideStreams",
    "SourceStream",
    "Stream",
    "StreamEnd",
    "StreamTable",
    "WindowResults",
    "WindowedStream",
)
