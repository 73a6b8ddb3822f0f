"""
HTTP: an async step that asks a JSON API about each element (`lookup`), and sources.

Sources keep a connection and make it again when it breaks (`connection`): server-sent events (`sse`),
WebSockets (`websocket`), and APIs that answer page by page (`pages`). What a template makes a URL of is in
`urls`, how connections are kept in `session`, how long a request may take in `time_limit`, and how an answer
is read in `answers`.
"""

from asyncstream.connectors.http.lookup import HttpLookup
from asyncstream.connectors.http.pages import RestSource
from asyncstream.connectors.http.sse import ServerSentEvent, SseSource
from asyncstream.connectors.http.websocket import WebSocketSource

__all__ = ("HttpLookup", "RestSource", "ServerSentEvent", "SseSource", "WebSocketSource")
