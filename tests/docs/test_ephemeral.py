"""docs/ephemeral.md: the samples for JUnit, Go and Vitest, each with its language's own tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pages
import playing
import pytest

pytestmark = [pytest.mark.external, pytest.mark.slow]


@pytest.mark.skipif(shutil.which("mvn") is None or shutil.which("java") is None, reason="no Maven or no Java")
def test_junit(tmp_path: Path) -> None:
    run_sample(tmp_path, "junit")
    (report,) = (tmp_path / "junit/target/surefire-reports").glob("*.txt")
    assert "Tests run: 1, Failures: 0, Errors: 0, Skipped: 0" in report.read_text("utf-8")


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go")
def test_go(tmp_path: Path) -> None:
    assert "ok  \tshop/orders" in run_sample(tmp_path, "go")


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm")
def test_vitest(tmp_path: Path) -> None:
    assert "1 passed" in run_sample(tmp_path, "vitest")


def run_sample(folder: Path, language: str) -> str:
    """Write the files of one language and run its commands, with this environment's amqpd. Return the output."""
    test, commands = f"test_{language}", ""
    for block in pages.read("docs/ephemeral.md").blocks:
        if block.marks.get("run by") != test:
            continue
        if name := block.marks.get("file"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, "utf-8")
        else:
            commands += block.text
    playing.make_programs(folder / ".programs")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AMQPD_", "PYTEST_"))}
    env |= {
        "PATH": f"{folder / '.programs'}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TMPDIR": str(folder),
        "NO_COLOR": "1",
    }
    process = subprocess.run(
        ["bash", "-euc", commands], cwd=folder / language, env=env, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    assert not list(folder.glob("amqpd-*")), "the broker's directory is left"
    return process.stdout
