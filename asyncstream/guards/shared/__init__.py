"""
Small records that processes and hosts share: what is left of a rate, who holds a place, what a budget has
come to, whether a service fails.

`SharedLimit` says where they are: an SQLite database, for the processes of one machine; a Redis; or a
`LimitServer`, which any process can be, the driver of a Spark application for one.
"""

from asyncstream.guards.shared.records import Change, Compared, Records, RecordsAway
from asyncstream.guards.shared.scope import SharedLimit
from asyncstream.guards.shared.server import LimitServer

__all__ = ("Change", "Compared", "LimitServer", "Records", "RecordsAway", "SharedLimit")
