"""trace_on and trace_off with the texts of rabbitmqctl 3.10.8."""

from __future__ import annotations

import pytest
from fake_broker import Ctl, FakeBroker

TRACE = ("POST", "/api/amqpd/trace")


@pytest.mark.parametrize(
    ("command", "on", "begins", "ends"),
    [("trace_on", True, "Starting", "enabled"), ("trace_off", False, "Stopping", "disabled")],
)
def test_trace_is_switched_on_and_off(
    broker: FakeBroker, ctl: Ctl, command: str, on: bool, begins: str, ends: str
) -> None:
    broker.answers[TRACE] = (204, None)
    output = f'{begins} tracing for vhost "v" ...\nTrace {ends} for vhost v\n'
    assert ctl(command, "-p", "v") == (0, output, "")
    assert broker.requests[0].body == {"vhost": "v", "on": on}
    assert ctl("-q", command) == (0, f"Trace {ends} for vhost /\n", "")
    assert broker.requests[1].body == {"vhost": "/", "on": on}


def test_missing_vhost_is_an_error(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers[TRACE] = (404, {"error": "not_found", "reason": "vhost 'v' does not exist"})
    result = ctl("-q", "trace_on", "-p", "v")
    assert (result.code, result.out) == (65, "")
    assert "Virtual host 'v' does not exist" in result.err
