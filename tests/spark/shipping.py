"""
A Spark whose workers do not have the package, and the package in a zip.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, files, requires
from pathlib import Path

from tests.spark.cluster import ROOT


def zipped_package(folder: Path) -> Path:
    """What `zip -r asyncstream.zip asyncstream` makes."""
    path = folder / "asyncstream.zip"
    with zipfile.ZipFile(path, "w") as package:
        for module in sorted((ROOT / "asyncstream").rglob("*.py")):
            package.write(module, module.relative_to(ROOT))
    return path


def python_without_package(folder: Path) -> Path:
    """
    This Python with PySpark and the packages that the example says, and what these need, but nothing else.

    It does not look into its own site-packages, where the package may be installed, or be pointed to.
    """
    packages = folder / "site-packages"
    packages.mkdir()
    for entry in sorted(_installed(["pyspark", *named_packages()])):
        (packages / entry.name).symlink_to(entry)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec "{sys.executable}" -S "$@"\n')
    python.chmod(0o700)
    return python


def named_packages() -> list[str]:
    """What workers need, as the first lines of the example name it."""
    found = re.search(r"in a zip: ([a-z ]+)$", (ROOT / "examples/spark_job.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split()


def _installed(packages: list[str]) -> Iterator[Path]:
    """The files and folders at the top of site-packages that belong to these, and to what they need."""
    seen: set[str] = set()
    tops: set[Path] = set()
    while packages:
        name = packages.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            mine = files(name) or []
        except PackageNotFoundError:
            continue  # for another platform
        tops |= {Path(str(path.locate())).parents[len(path.parts) - 1] / path.parts[0] for path in mine}
        wanted = [line for line in requires(name) or [] if "extra ==" not in line]
        packages += [re.split(r"[^\w.-]", line)[0] for line in wanted]
    return iter(path for path in tops if path.name not in ("..", "__pycache__"))


def writable_spark(folder: Path) -> Path:
    """A home of Spark in which its workers may keep their folders, as they insist."""
    import pyspark

    home = folder / "spark"
    home.mkdir()
    for entry in Path(pyspark.__path__[0]).iterdir():
        (home / entry.name).symlink_to(entry)
    return home
