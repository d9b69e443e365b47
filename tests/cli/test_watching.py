"""trace_on and trace_off: rabbitmqctl 3.10.8's texts."""

from __future__ import annotations

import pytest
from fake_broker import Ctl, FakeBroker

TRACE = ("POST", "/api/amqpd/trace")


@pytest.mark.parametrize(
    ("command", "on", "begins", "ends"),
    [("trace_on", True, "Starting", "enabled"), ("trace_off", False, "Stopping", "disabled")],
)
def test_switching(broker: FakeBroker, ctl: Ctl, command: str, on: bool, begins: str, ends: str) -> None:
    broker.answers[TRACE] = (204, None)
    said = f'{begins} tracing for vhost "v" ...\nTrace {ends} for vhost v\n'
    assert ctl(command, "-p", "v") == (0, said, "")
    assert broker.asked[0].body == {"vhost": "v", "on": on}
    assert ctl("-q", command) == (0, f"Trace {ends} for vhost /\n", "")
    assert broker.asked[1].body == {"vhost": "/", "on": on}


def test_no_such_vhost(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers[TRACE] = (404, {"error": "not_found", "reason": "vhost 'v' does not exist"})
    result = ctl("-q", "trace_on", "-p", "v")
    assert (result.code, result.out) == (65, "")
    assert "Virtual host 'v' does not exist" in result.err
