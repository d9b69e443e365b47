"""docs/tls.md executed from top to bottom with other ports: certificates by openssl, settings, a user, pika and
amqpctl.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from amqpd.config import load
from amqpd.testing import BrokerProcess

PAGE = (Path(__file__).parent.parent / "docs" / "tls.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def run(folder: Path, *command: str, **environment: str) -> str:
    process = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=90,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in table.items():
        values |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return values


@pytest.mark.slow
def test_page_runs(tmp_path: Path) -> None:
    make_certificates, add_users, list_vhosts = blocks("sh")
    (settings,) = blocks("toml")
    (example,) = blocks("python")
    run(tmp_path, "sh", "-ec", make_certificates)
    (tmp_path / "amqpd.toml").write_text(settings, "utf-8")
    old_folder = Path.cwd()
    os.chdir(tmp_path)
    try:
        assert load([], {}).settings.http.port is None  # the page's file is accepted unchanged
    finally:
        os.chdir(old_folder)
    page_settings = flatten(tomllib.loads(settings))
    ports = {"amqp.tls.port": 0, "http.tls.port": 0}
    files = {name: tmp_path / value for name, value in page_settings.items() if str(value).endswith((".pem", ".key"))}
    mechanisms = {"auth.mechanisms": ",".join(page_settings["auth.mechanisms"])}
    with BrokerProcess(tmp_path / "data", settings={**page_settings, **files, **ports, **mechanisms}) as broker:
        assert broker.ready is not None
        amqpctl = tmp_path / "amqpctl"
        amqpctl.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m amqpd.cli "$@"\n', "utf-8")
        amqpctl.chmod(0o755)
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        run(tmp_path, "sh", "-ec", add_users, PATH=path, AMQPD_DATA_DIR=str(broker.data_dir))
        example = example.replace("5671", str(broker.ready.listeners["amqps"][1]))
        assert run(tmp_path, sys.executable, "-P", "-c", example) == "signed, anna\n"
        list_vhosts = list_vhosts.replace("15671", str(broker.ready.listeners["https"][1]))
        assert run(tmp_path, "sh", "-ec", list_vhosts, PATH=path) == "Listing vhosts ...\nname\n/\n"
        assert "Traceback" not in broker.stderr, broker.stderr
