"""Examples in docs/ run as they stand, but for the port, and print what the page says they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqpd.testing import BrokerProcess

DOCS = Path(__file__).parent.parent / "docs"
# Page: what the log of its examples has to be like.
PAGES = {
    "audit.md": r"queue.created invoices-2025 guest amqp\nqueue.deleted invoices-2025 guest amqp\n",
    "consumer-timeouts.md": r"cancelled: hung\ndone by the other one, redelivered: True\n",
    "deduplication.md": r"order 4711\norder 4712\nNone\n",
    "exchange-types.md": r"orders.c has about half of them: True\neach customer is in one queue: True\n"
    r"is it on\?\nit is\n",
    "delays.md": r"at once \{\}\nat a time \{\}\nin 600 ms \{'x-delay': -600\}\nafter 600 ms: True\n",
    "filters.md": r"order 1 25\norder 3 12\nsmall worker: resize\nsmall worker: thumbnail\nwaiting: 1\n"
    r"night-shift 1\narchive 2\nsite-7 1\n",
    "idempotent-publishing.md": r"order 0\norder 1\norder 2\nNone\n",
    "groups.md": r"first has order 0 of anna\nsecond has order 2 of bob\nsecond has order 4 of bob\n"
    r"second has order 5 of cleo\nfirst has order 1 of anna\n",
    "retries.md": r"after \d+ s: bad\nafter \d+ s: good\nafter ([1-9]|\d\d) s: bad\nafter ([3-9]|\d\d) s: bad\n"
    r"after ([6-9]|\d\d) s: bad\n"
    r"bad failed: delivery_limit\n",
    "transactions.md": r"after the rollback: 0 0\nbefore the commit: 0 0\nafter the commit: 1 1\n"
    r"406 PRECONDITION_FAILED - partial tx completion\n",
    "watching.md": r"publish. \['orders'\] \{'app_id': 'shop'\} b'an order'\n"
    r"queue.created invoices guest\nqueue.deleted invoices guest\n",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("docs"), settings={"event_exchange_vhost": "/"}) as process:
        yield process


@pytest.mark.parametrize("page", PAGES)
def test_its_examples_run(page: str, broker: BrokerProcess, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    broker.ctl("trace_on" if page == "watching.md" else "trace_off")
    said = ""
    for number, block in enumerate(blocks):
        script = tmp_path / f"example{number}.py"
        text = block.replace("127.0.0.1:5672", f"127.0.0.1:{broker.amqp_port}")
        # A machine that does other work may be silent for longer than a reader wants to wait.
        script.write_text(re.sub(r"inactivity_timeout=[12]\b", "inactivity_timeout=6", text), "utf-8")
        run = subprocess.run(
            [sys.executable, "-P", str(script)],
            check=False,
            capture_output=True,
            text=True,
            timeout=90,
            env=dict(os.environ),
        )
        assert run.returncode == 0, run.stderr
        said += run.stdout
    assert re.fullmatch(PAGES[page], said), said
