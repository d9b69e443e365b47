"""docs/policies.md: its example does what it says. (tests/test_house.py looks at its table.)"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from amqpd.testing import BrokerProcess

ROOT = Path(__file__).parent.parent
MANUAL = (ROOT / "docs" / "policies.md").read_text("utf-8")


def test_the_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", MANUAL, re.DOTALL)
    program = tmp_path / "amqpctl"
    program.write_text(
        f"#!{sys.executable} -P\nimport sys\nsys.path[:0] = {sys.path!r}\nfrom amqpd.cli.main import main\n"
        "sys.exit(main())\n"
    )
    program.chmod(0o755)
    with BrokerProcess(tmp_path / "data") as broker:
        environment = os.environ | {
            "AMQP_URL": broker.url,
            "AMQPD_DATA_DIR": str(broker.data_dir),
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            [sys.executable, "-c", example], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
