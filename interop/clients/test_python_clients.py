"""The happy path of each Python client: its program with a work queue, and with requests and replies."""

from __future__ import annotations

import os

import pytest

from amqpd.testing import Vhost

from .programs import CLIENTS, Client, Missing, full_command
from .runner import run
from .scenarios import BY_NAME

PYTHON_CLIENTS = [each for each in CLIENTS if each.language == "Python"]


@pytest.mark.parametrize("scenario", ["work-queue", "rpc"])
@pytest.mark.parametrize("client", PYTHON_CLIENTS, ids=[each.name for each in PYTHON_CLIENTS])
def test_happy_path_of_a_python_client_passes(client: Client, scenario: str, amqpd_vhost: Vhost) -> None:
    try:
        command = client.command()
    except Missing as missing:
        pytest.skip(str(missing))
    command = full_command(command, BY_NAME[scenario].group, scenario)
    ended = run(command, os.environ | {"AMQP_URL": amqpd_vhost.url})
    assert ended.code == 0 and BY_NAME[scenario].accepts(ended.lines), ended.out + ended.err
