"""Which releases of Spark there may be."""

from __future__ import annotations

import pytest

from asyncstream import PipelineError
from asyncstream.runtime.spark.release import is_since
from asyncstream.runtime.spark.session import need_pyspark


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1.dev0", "4.2.0-amzn-1", "4.10.0", "5.0"])
def test_a_release_is_known_by_its_first_two_numbers(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    assert is_since(4, 2)
    monkeypatch.setattr("pyspark.__version__", f"4.1.{version}")
    assert not is_since(4, 2)


def test_what_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    need_pyspark()
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    with pytest.raises(PipelineError, match=r"running on Spark needs PySpark 4.2 or newer; this is 4.1.4"):
        need_pyspark()
