"""docs/policies.md: its example does what it says, its table has every key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from amqpd.broker.catalogue.policy_keys import keys
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


def test_the_table_has_every_key() -> None:
    """After a change of the keys: put this text between the two marks of docs/policies.md."""
    table = ["| key | argument | operator policies too | merged | meaning |", "|---|---|---|---|---|"]
    for key in keys().values():
        argument = f"`{key.argument}`" if key.argument else ""
        operator = "yes" if key.operator else ""
        merge = "" if key.meaning.startswith("ignored: ") else f"the {key.merge}"
        table.append(f"| `{key.name}` | {argument} | {operator} | {merge} | {key.meaning} |")
    documented = MANUAL.partition("<!-- keys -->\n")[2].partition("<!-- end of keys -->")[0]
    assert documented.splitlines() == table
