"""docs/exchange-types.md, "A type of your own": after installation of its package a broker has the type."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pages
import pytest

from amqpd.testing import BrokerProcess


def _run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_NO_INPUT": "1"}
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.mark.slow
def test_installed_package_adds_the_exchange_type(tmp_path: Path) -> None:
    page = pages.read("docs/exchange-types.md")
    (module,) = (block for block in page.blocks if block.marks.get("file") == "by_ending.py")
    project, install, example = (block for block in page.blocks if "run by" in block.marks)
    sources, installed = tmp_path / "sources", tmp_path / "installed"
    sources.mkdir()
    (sources / "by_ending.py").write_text(module.text, "utf-8")
    (sources / "pyproject.toml").write_text(project.text, "utf-8")

    assert install.text == "pip install .\n"
    offline = ("--quiet", "--disable-pip-version-check", "--no-build-isolation", "--target", str(installed))
    _run(sources, sys.executable, "-m", "pip", "install", *offline, ".")

    path = os.pathsep.join([str(installed), *filter(None, sys.path)])
    with BrokerProcess(tmp_path / "data", env={"PYTHONPATH": path}) as broker:
        script = example.text.replace("127.0.0.1:5672", f"127.0.0.1:{broker.amqp_port}")
        assert _run(tmp_path, sys.executable, "-c", script) == "sea\n"
