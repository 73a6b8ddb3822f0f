"""
A Spark whose workers do not have the package, and the package in a zip.
"""

from __future__ import annotations

import sys
import sysconfig
import zipfile
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
    This Python with the packages installed for it, but this one.

    It does not look into its own site-packages, where the package may be installed, or be pointed to.
    """
    packages = folder / "site-packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "asyncstream" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec "{sys.executable}" -S "$@"\n')
    python.chmod(0o700)
    return python


def writable_spark(folder: Path) -> Path:
    """A home of Spark in which its workers may keep their folders, as they insist."""
    import pyspark

    home = folder / "spark"
    home.mkdir()
    for entry in Path(pyspark.__path__[0]).iterdir():
        (home / entry.name).symlink_to(entry)
    return home
