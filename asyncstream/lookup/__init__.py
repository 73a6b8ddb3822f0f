"""
Lookups: elements with the rows that they ask for, of a table that is read again and again, or a stream.
"""

from asyncstream.lookup.answers import MISSED, Asked, How, Joined
from asyncstream.lookup.read import ReadLookupSpec
from asyncstream.lookup.streamed import StreamLookupSpec
from asyncstream.lookup.table import LookupTable

__all__ = ("MISSED", "Asked", "How", "Joined", "LookupTable", "ReadLookupSpec", "StreamLookupSpec")
