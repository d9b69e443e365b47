"""Fixtures that run amqpctl in the test process against a fake broker."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Make fake_broker importable: importmode=importlib does not add this folder to the path.
sys.path.insert(0, str(Path(__file__).parent))

from fake_broker import Ctl, FakeBroker, Result

from amqpd.cli.main import run


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FakeBroker]:
    broker = FakeBroker(tmp_path)
    yield broker
    broker.stop()


@pytest.fixture
def ctl(tmp_path: Path) -> Ctl:
    """Run amqpctl with AMQPD_DATA_DIR set to `tmp_path` and node name `n@h`. Keywords: stdin, environment."""

    def call(*arguments: str, stdin: str = "", environment: dict[str, str] | None = None) -> Result:
        out, err = io.StringIO(), io.StringIO()
        variables = {"AMQPD_DATA_DIR": str(tmp_path)} if environment is None else environment
        code = run(["-n", "n@h", *arguments], out, err, io.StringIO(stdin), variables)
        return Result(code, out.getvalue(), err.getvalue())

    return call
