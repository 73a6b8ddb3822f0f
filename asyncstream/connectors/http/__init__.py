"""
HTTP: an async step that asks a JSON API about each element (`lookup`).

What a template makes a URL of is in `urls`, and how an answer is read in `answers`.
"""

from asyncstream.connectors.http.lookup import METHODS, HttpLookup

__all__ = ("METHODS", "HttpLookup")
