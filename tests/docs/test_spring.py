"""docs/spring.md: the application on the page is built with Maven and prints the output shown there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pages
import pytest

from amqpd.testing import BrokerProcess

pytestmark = [pytest.mark.external, pytest.mark.slow]


@pytest.mark.skipif(shutil.which("mvn") is None or shutil.which("java") is None, reason="no Maven or no Java")
def test_application_prints_expected_output(amqpd_broker: BrokerProcess, tmp_path: Path) -> None:
    page = pages.read("docs/spring.md")
    for block in page.blocks:
        if name := block.marks.get("file"):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text.replace("127.0.0.1:5672", f"127.0.0.1:{amqpd_broker.amqp_port}"), "utf-8")
    (commands,) = (block.text for block in page.blocks if block.language == "sh")
    process = subprocess.run(
        ["bash", "-euc", commands], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    (expected_output,) = (block.text for block in page.blocks if block.language == "text")
    assert set(expected_output.splitlines()) - set(process.stdout.splitlines()) == set(), process.stdout
