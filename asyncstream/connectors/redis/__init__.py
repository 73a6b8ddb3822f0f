"""
Redis Streams: as a source, read as a log or as a member of a group, and as a sink with ids.
"""

from asyncstream.connectors.redis.group import RedisGroupSource
from asyncstream.connectors.redis.sink import RedisStreamSink
from asyncstream.connectors.redis.source import RedisStreamSource

__all__ = ("RedisGroupSource", "RedisStreamSink", "RedisStreamSource")
