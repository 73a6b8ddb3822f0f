"""What is shipped: a source archive, and a wheel made from it that works where nothing else is installed."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import asyncstream

ROOT = Path(__file__).parent.parent

pytest.importorskip("build.__main__")  # `build` alone is the folder that `make docs` writes


def run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_package_is_built_and_works_in_a_clean_environment(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    run(sys.executable, "-m", "build", "--outdir", dist, ROOT, folder=tmp_path)
    (source,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")

    with tarfile.open(source) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "asyncstream/py.typed", "tests/conftest.py"} <= shipped
    assert not [name for name in shipped if name.startswith((".venv", ".hypothesis", ".git/"))]
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert {name.split("/")[0] for name in names} == {
        "asyncstream",
        f"asyncstream-{asyncstream.__version__}.dist-info",
    }
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "asyncstream").rglob("*.py")}
    static = {str(path.relative_to(ROOT)) for path in (ROOT / "asyncstream/web/static").iterdir()}
    assert modules | static | {"asyncstream/py.typed"} <= set(names)

    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "clean", folder=tmp_path)
    clean = tmp_path / "clean/bin"
    pip = (sys.executable, "-m", "pip", "--python", clean / "python")
    run(*pip, "install", "--quiet", "--no-compile", wheel, folder=tmp_path)
    assert asyncstream.__version__ in run(clean / "asyncstream", "--version", folder=tmp_path)
    told = run(clean / "python", ROOT / "examples/windows.py", folder=tmp_path)
    assert told == run(sys.executable, ROOT / "examples/windows.py", folder=tmp_path)
