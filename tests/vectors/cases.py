"""
Loads golden cases: one JSON object a line, from this folder or from the one that `ASYNCSTREAM_VECTORS` names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

Case = dict[str, Any]

FOLDER = Path(os.environ.get("ASYNCSTREAM_VECTORS") or Path(__file__).parent)


def cases(file: str, *kinds: str) -> list[Any]:
    """The cases of these kinds in `file`, as pytest parameters named as in the file; none if it is absent."""
    path = FOLDER / file
    if not path.exists():
        return []
    found = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
    return [pytest.param(case, id=case.get("name") or case["id"]) for case in found if case["kind"] in kinds]
