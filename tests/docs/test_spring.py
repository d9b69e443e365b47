"""docs/spring.md: the application of the page is built with Maven and prints what the page says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pages
import pytest

from amqpd.testing import BrokerProcess

pytestmark = [pytest.mark.external, pytest.mark.slow]


@pytest.mark.skipif(shutil.which("mvn") is None or shutil.which("java") is None, reason="no Maven or no Java")
def test_the_application(amqpd_broker: BrokerProcess, tmp_path: Path) -> None:
    page = pages.read("docs/spring.md")
    for block in page.blocks:
        if name := block.marks.get("file"):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text.replace("127.0.0.1:5672", f"127.0.0.1:{amqpd_broker.amqp_port}"), "utf-8")
    (commands,) = (block.text for block in page.blocks if block.language == "sh")
    done = subprocess.run(
        ["bash", "-euc", commands], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (promised,) = (block.text for block in page.blocks if block.language == "text")
    assert set(promised.splitlines()) - set(done.stdout.splitlines()) == set(), done.stdout
