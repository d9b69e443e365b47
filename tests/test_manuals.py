"""Manuals whose example runs amqpctl beside its client: it does what it says. (tests/test_house.py looks at tables.)"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from amqpd.testing import BrokerProcess

DOCS = Path(__file__).parent.parent / "docs"
# Page: what its example prints.
PAGES = {
    "policies.md": "",
    "replay.md": (
        "name\tmessages\tmessages_retained\naudit\t0\t\norders\t0\t3\n"
        "3 messages would be rewound from offset 0 on\n"
        "2 messages rewound from offset 0 on\n"
        "1 messages rewound from offset 0 on\n"
        "name\tmessages\tmessages_retained\naudit\t1\t\norders\t2\t1\n"
        "{'customer': 'acme'} redelivered: True\n"
    ),
    "surgery.md": (
        "offset\tstate\tpayload\n0\tready\tan order\n1\tready\tan order\n2\tready\tan order\n"
        "3 messages would be sent back\n2 messages sent back\n1 messages moved\n"
        "name\tmessages\nfailed\t0\norders\t3\n"
        "customer x-redrive-count x-source-queue x-source-offset\n"
    ),
    "trace.md": (
        "queue\tstate\norders\tready\n"
        "queue\tstate\tuser\norders\tunacked\tguest\n"
        "queue\tstate\treason\nfailed\tunacked\t\norders\tgone\trejected\n"
    ),
    "definitions.md": (
        "65 Error:\nparameters[0]: Validation failed component shovel not found\n"
        "0 Passed over: vhosts[0].made_by is not known\n"
        "Left out: parameters[0]: Validation failed component shovel not found\n"
        "an order\n['orders'] ['most']\n"
    ),
    "limits.md": (
        "406 PRECONDITION_FAILED - cannot declare queue 'invoices': queue limit in vhost '/' (1) is reached\n"
        'ConnectionClosedByBroker: (530) "NOT_ALLOWED - access to vhost \'/\' refused for user \'guest\': '
        'connection limit (1) is reached"\n'
        "530 NOT_ALLOWED - number of channels opened for user 'guest' has reached the maximum allowed user limit "
        "of (1)\n"
    ),
}


@pytest.mark.parametrize("page", PAGES)
def test_the_example_runs(page: str, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
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
            [sys.executable, "-c", example], env=environment, capture_output=True, text=True, timeout=90, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == PAGES[page]
