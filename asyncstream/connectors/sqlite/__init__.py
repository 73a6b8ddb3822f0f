"""
SQLite: a table as a source, read in the order of its rows or of a column, and as a sink.
"""

from asyncstream.connectors.sqlite.sink import SqliteSink
from asyncstream.connectors.sqlite.source import SqliteSource

__all__ = ("SqliteSink", "SqliteSource")
