"""The results of `make build` installed into clean environments: the manylinux wheel, and the sources without a
compiler.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pika
import pytest

from amqpd import __version__
from amqpd._build import WITNESS
from amqpd.testing import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.external]
ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    # Without PYTHONPATH and similar variables: modules must be found because they are installed.
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    process = subprocess.run(command, cwd=cwd, env=environ | environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{command}\n{process.stdout}\n{process.stderr}"
    return process.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and sources, built in seconds with one compiled module. TEST_DIST names another folder."""
    if folder_name := os.environ.get("TEST_DIST"):
        return Path(folder_name).resolve()
    pytest.importorskip("auditwheel", reason="needs the extra `wheels`")
    with (ROOT / "pyproject.toml").open("rb") as file:
        modules = tomllib.load(file)["tool"]["amqpd"]["compiled-modules"]
    interpreted_modules = ",".join(module for module in modules if module != f"amqpd.broker.{WITNESS}")
    folder = tmp_path_factory.mktemp("dist")
    options = {
        "AMQPD_INTERPRETED": interpreted_modules,
        "PAGE_BUILD": "0",
        "MYPYC_OPT_LEVEL": "0",
        "BUILD_PYTHON": sys.executable,
    }
    run(ROOT / ".ci" / "build", folder, cwd=ROOT, **options)
    return folder


def install(archive: Path, folder: Path, **environment: str) -> Path:
    """Return the `bin` of a new environment with that archive and its dependencies."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    pip = (folder / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-compile")
    run(*pip, archive, cwd=folder, PIP_NO_INPUT="1", **environment)
    return folder / "bin"


def publish_and_get(program: Path, data_dir: Path) -> str:
    """Publish and get a message, list the queue. Return the broker's standard error."""
    with BrokerProcess(data_dir, env={"PYTHONPATH": ""}, command=[str(program / "amqpd")]) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("hello", durable=True)
            channel.basic_publish("", "hello", b"Hello!", pika.BasicProperties(delivery_mode=2))
            assert channel.basic_get("hello", auto_ack=True)[2] == b"Hello!"
        uri = f"http://guest:guest@127.0.0.1:{broker.http_port}"
        assert "hello" in run(program / "amqpctl", "--uri", uri, "list_queues", cwd=data_dir)
        broker.stop()
        return broker.stderr


def test_wheel_has_manylinux_tag_and_runs(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob(f"amqpd-{__version__}-cp3*.whl")
    tag = rf"(manylinux\w*\.)?manylinux_2_(\d+)_{platform.machine()}"
    found = re.fullmatch(rf"amqpd-[\d.]+-(cp3\d+)-\1-{tag}\.whl", wheel.name)
    assert found is not None, wheel.name
    program = install(wheel, tmp_path / "environment")
    assert run(program / "amqpd", "--version", cwd=tmp_path).startswith(f"amqpd {__version__} (compiled), ")
    assert "interpreted" not in publish_and_get(program, tmp_path / "data")


def test_sources_install_without_compiler_and_log_a_warning(dist: Path, tmp_path: Path) -> None:
    (sources,) = dist.glob(f"amqpd-{__version__}.tar.gz")
    with tarfile.open(sources) as packed:
        tops = {Path(*Path(name).parts[1:2]).name for name in packed.getnames()}
    generated = {"", "PKG-INFO", "amqpd.egg-info", "setup.cfg"}
    assert tops - generated == {
        "LICENSE",
        "README.md",
        "amqpd",
        "cli",
        "pyproject.toml",
        "routing",
        "setup.py",
        "storage",
    }
    program = install(sources, tmp_path / "environment", CC="no-such-compiler", PAGE_BUILD="0")
    log = publish_and_get(program, tmp_path / "data")
    (line,) = [line for line in log.splitlines() if "interpreted" in line]
    assert "several times slower than compiled" in line and "apt install gcc python3-dev" in line
