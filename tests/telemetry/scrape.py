"""
What `promtool check metrics` asks of a scrape, and what the exposition format does: a checker of our own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf

from prometheus_client.parser import text_string_to_metric_families

__all__ = ("complaints", "samples")

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
ABBREVIATED = ("_ms", "_s", "_us", "_kb", "_mb", "_milliseconds", "_microseconds")


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The value of each sample, by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def complaints(text: str) -> Iterator[str]:
    """What is wrong with a scrape."""
    if not text.endswith("\n"):
        yield "the last line has no end"
    yield from _about_lines(text.splitlines())
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for family in text_string_to_metric_families(text):
        if not NAME.match(family.name):
            yield f"{family.name} is no name"
        if family.name.endswith(ABBREVIATED):
            yield f"{family.name} ends in a unit that is not spelt out, or no base unit"
        if family.type == "unknown":
            yield f"{family.name} has no type"
        if not family.documentation:
            yield f"{family.name} has no help"
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            if key in seen:
                yield f"{key} is there twice"
            seen.add(key)
            if family.type == "counter" and not sample.name.endswith(("_total", "_created")):
                yield f"{sample.name} is a counter and does not end in _total"
            if family.type == "gauge" and sample.name.endswith("_total"):
                yield f"{sample.name} is no counter and ends in _total"
        if family.type == "histogram":
            yield from _about_buckets(family.name, text)


def _about_lines(lines: list[str]) -> Iterator[str]:
    """Each family in one piece: its help, its type, its samples."""
    current, done = "", set[str]()
    for line in lines:
        name = line.split()[2] if line.startswith("# ") else current
        if line.startswith("# HELP"):
            if name in done:
                yield f"{name} comes in two pieces"
            done.add(name)
            current = name
        elif line.startswith("# TYPE") and name != current:
            yield f"the type of {name} is not behind its help"
        elif not line.startswith("#") and not line.startswith(current.removesuffix("_total")):
            yield f"{line} is not among the samples of its family"


def _about_buckets(name: str, text: str) -> Iterator[str]:
    series: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
    found = samples(text)
    for (sample, labels), value in found.items():
        if sample == f"{name}_bucket":
            bound = float(dict(labels)["le"].replace("+Inf", "inf"))
            rest = frozenset(pair for pair in labels if pair[0] != "le")
            series.setdefault(rest, []).append((bound, value))
    for labels, buckets in series.items():
        if buckets != sorted(buckets):
            yield f"buckets of {name} do not rise"
        if [count for _, count in buckets] != sorted(count for _, count in buckets):
            yield f"buckets of {name} are not cumulative"
        if buckets[-1] != (inf, found[f"{name}_count", labels]):
            yield f"the last bucket of {name} is not all that was counted"
        if (f"{name}_sum", labels) not in found:
            yield f"{name} has no sum"
