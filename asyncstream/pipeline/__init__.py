"""The fluent face of the package: `Pipeline` and the streams that come out of its steps."""

from asyncstream.pipeline.pipeline import Pipeline, SourceStream
from asyncstream.pipeline.stream import AsyncResults, KeyedStream, Stream

__all__ = ("AsyncResults", "KeyedStream", "Pipeline", "SourceStream", "Stream")
