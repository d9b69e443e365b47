"""amqpctl run against a fake broker, without a process."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# What the tests share lies beside them; importmode=importlib leaves this folder off the path.
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
    """amqpctl with AMQPD_DATA_DIR set to `tmp_path`, its node named `n@h`; stdin and environment by keyword."""

    def call(*arguments: str, stdin: str = "", environment: dict[str, str] | None = None) -> Result:
        out, err = io.StringIO(), io.StringIO()
        known = {"AMQPD_DATA_DIR": str(tmp_path)} if environment is None else environment
        code = run(["-n", "n@h", *arguments], out, err, io.StringIO(stdin), known)
        return Result(code, out.getvalue(), err.getvalue())

    return call
