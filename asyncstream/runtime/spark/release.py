"""
Which release of Spark there is, for what the supported ones do differently.
"""

from __future__ import annotations

import re

__all__ = ("is_since",)


def is_since(major: int, minor: int) -> bool:
    """Whether it is this release of PySpark, or a later one; vendors add words of their own to its number."""
    import pyspark

    return [*map(int, re.findall(r"\d+", pyspark.__version__)[:2])] >= [major, minor]
