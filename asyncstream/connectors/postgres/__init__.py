"""
PostgreSQL: tables as sinks, and a table in which services leave their rows as a source.

The client is psycopg 3. It is typed throughout, reads and writes `COPY` as text, which the server casts to
whatever type a column has, and brings a cancelled statement to its end on the server.
"""

from asyncstream.connectors.postgres.outbox import PostgresOutbox
from asyncstream.connectors.postgres.sink import PostgresSink, PostgresUpsertSink

__all__ = ("PostgresOutbox", "PostgresSink", "PostgresUpsertSink")
