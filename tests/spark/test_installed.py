"""Says, once, why the other tests of this folder do not run; and what users are told then."""

from __future__ import annotations

import sys

import pytest

from asyncstream.errors import MissingExtra
from asyncstream.runtime.spark import local_spark


def test_pyspark_is_there() -> None:
    pytest.importorskip("pyspark", reason="the tests of Spark need the extra [spark]")


def test_error_without_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingExtra, match=r"running on Spark needs the extra \[spark\]"):
        local_spark()
