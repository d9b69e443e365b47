"""The wheel, an editable installation and a checkout: all find `amqpd.routing`, `amqpd.storage` and `amqpd.cli`.

A project that uses the wheel may have its own `routing/`, `storage/` and `cli/`.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from amqpd import __version__
from amqpd._build import is_compiled

ROOT = Path(__file__).parent.parent
BESIDE = ("routing", "storage", "cli")


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    # Without PYTHONPATH and similar variables: modules must be found because they are installed.
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    process = subprocess.run(command, cwd=cwd, env=environment | environ, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{command}\n{process.stdout}\n{process.stderr}"
    return process.stdout


def pip(*arguments: str | Path, cwd: Path, **environ: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", *quiet, *arguments, cwd=cwd, PIP_NO_INDEX="1", PIP_NO_INPUT="1", **environ)


def built_files() -> set[Path]:
    """Return files that a build may leave in the source tree."""
    source_folders = [ROOT / folder for folder in ("amqpd", *BESIDE)]
    return {
        *(path for top in source_folders for path in top.rglob("*.so")),
        *(path for pattern in ("build", "*.egg-info", "*/build") for path in ROOT.glob(pattern)),
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreted wheel of the sources, built offline; the build leaves the source tree unchanged."""
    directory = tmp_path_factory.mktemp("wheel")
    before = built_files()
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", directory)
    pip("wheel", *options, ROOT, cwd=directory, AMQPD_INTERPRETED="1", PAGE_BUILD="0")
    assert built_files() == before
    (found,) = directory.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that contains only this wheel."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    interpreter = environment / "bin" / "python"
    pip("--python", interpreter, "install", "--no-deps", wheel, cwd=environment)
    return interpreter


@pytest.mark.slow
def test_wheel_is_interpreted_and_for_every_machine(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")


@pytest.mark.slow
def test_wheel_contains_only_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"amqpd", "pyspark_amqp.py"}
    assert "amqpd/py.typed" in names
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "amqpd").rglob("*.py")}
    for folder in BESIDE:
        modules |= {f"amqpd/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / folder).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == {*modules, "pyspark_amqp.py"}
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_wheel_beside_project_packages_of_the_same_names(python: Path, tmp_path: Path) -> None:
    for name in BESIDE:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"OWNER = 'the project, {name}'\n")
    (tmp_path / "program.py").write_text(
        "import storage, routing, cli\n"
        "import amqpd.storage, amqpd.routing, amqpd.cli\n"
        "for package in storage, routing, cli: print(package.OWNER)\n"
        "for package in amqpd.storage, amqpd.routing, amqpd.cli:\n"
        "    print(package.__name__, hasattr(package, 'OWNER'), package.__file__)\n"
    )
    site = next((python.parent.parent / "lib").glob("python*/site-packages"))
    expected = [f"the project, {name}" for name in ("storage", "routing", "cli")]
    expected += [f"amqpd.{name} False {site}/amqpd/{name}/__init__.py" for name in ("storage", "routing", "cli")]
    assert run(python, "program.py", cwd=tmp_path).splitlines() == expected


IMPORTS = "import amqpd.routing as a, amqpd.storage as b, amqpd.cli as c; print(a.__file__, b.__file__, c.__file__)"


@pytest.mark.slow
def test_editable_installation_finds_all_packages(tmp_path: Path) -> None:
    before = built_files()
    build = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    run(sys.executable, "-P", "-c", build, tmp_path, cwd=ROOT)
    assert built_files() == before
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment", cwd=tmp_path)
    interpreter = tmp_path / "environment" / "bin" / "python"
    pip("--python", interpreter, "install", "--no-deps", wheel, cwd=tmp_path)
    files = [str(ROOT / name / "__init__.py") for name in BESIDE]
    assert run(interpreter, "-c", IMPORTS, cwd=tmp_path).split() == files
    assert "(interpreted)" in run(interpreter.parent / "amqpd", "--version", cwd=tmp_path)


@pytest.mark.parametrize("source", ["PYTHONPATH", "working directory"])
def test_checkout_finds_all_packages(source: str, tmp_path: Path) -> None:
    files = [str(ROOT / name / "__init__.py") for name in BESIDE]
    if source == "PYTHONPATH":
        assert run(sys.executable, "-P", "-c", IMPORTS, cwd=tmp_path, PYTHONPATH=str(ROOT)).split() == files
    else:
        assert run(sys.executable, "-c", IMPORTS, cwd=ROOT).split() == files


def test_installed_program_starts_from_any_folder(python: Path, tmp_path: Path) -> None:
    assert run(python.parent / "amqpd", "--version", cwd=tmp_path).startswith(f"amqpd {__version__} (interpreted), ")
    assert "amqp.port" in run(python, "-m", "amqpd", "--print-settings", cwd=tmp_path)


def test_export_without_packages_names_the_extra(python: Path, tmp_path: Path) -> None:
    """After `make run` amqpd is installed, pyarrow and Spark are not. A wrong command line is reported first."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    export = ("--to", "lake", "--queue", "orders")
    cases = ((export, "pyarrow", "export"), ((*export, "--engine", "spark"), "pyspark", "spark"))
    outputs = {}
    for arguments in ((), *(arguments for arguments, _, _ in cases)):
        command = (python.parent / "amqpctl", "export", *arguments)
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "Traceback" not in process.stderr, process.stderr
        outputs[arguments] = process.returncode, process.stdout + process.stderr
    assert outputs[()][0] == 64 and "--to is needed" in outputs[()][1]
    for arguments, package, extra in cases:
        code, text = outputs[arguments]
        assert code == 69 and f"needs the package {package}: " in text and f"{python} -m pip install " in text
        assert all(f"'{each}'" in text for each in extras[extra]) and f"make {extra}" in text
    assert list(tmp_path.iterdir()) == []


def test_old_python_is_refused_in_a_sentence() -> None:
    """pip before 3.11 shows the last line of a traceback otherwise: there is no tomllib."""
    code = "import runpy, sys; sys.modules['tomllib'] = None; runpy.run_path('setup.py', run_name='__main__')"
    process = subprocess.run((sys.executable, "-c", code), cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr == f"amqpd needs Python 3.11 or later, and this is {sys.version.split()[0]}\n"


@pytest.mark.skipif(not is_compiled(), reason="looks at a compiled installation")
def test_compiled_library_is_inside_the_package() -> None:
    files = importlib.metadata.files("amqpd")
    assert files
    libraries = [str(file) for file in files if file.suffix == ".so"]
    assert any(library.startswith("amqpd/_hot__mypyc.") for library in libraries)
    assert [library for library in libraries if not library.startswith("amqpd/")] == []
