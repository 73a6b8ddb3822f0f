"""
Keyed operators that are neither windows nor joins: one of many, the first of many, rolling results, patterns.
"""

from asyncstream.keyed.base import LATE
from asyncstream.keyed.changes import (
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    Change,
    ChangeKind,
    ChangeLog,
    Changes,
    change_log,
)
from asyncstream.keyed.deduplicate import By, DeduplicateSpec, Keep
from asyncstream.keyed.matching import TIMED_OUT, MatchingSpec, Skip
from asyncstream.keyed.pattern import Match, Pattern
from asyncstream.keyed.rolling import Best, RollingSpec
from asyncstream.keyed.top import Ranking, Ranks, TopSpec

__all__ = (
    "DELETE",
    "INSERT",
    "LATE",
    "TIMED_OUT",
    "UPDATE_AFTER",
    "UPDATE_BEFORE",
    "Best",
    "By",
    "Change",
    "ChangeKind",
    "ChangeLog",
    "Changes",
    "DeduplicateSpec",
    "Keep",
    "Match",
    "MatchingSpec",
    "Pattern",
    "Ranking",
    "Ranks",
    "RollingSpec",
    "Skip",
    "TopSpec",
    "change_log",
)
