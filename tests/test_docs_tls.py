"""docs/tls.md from top to bottom, but for the ports: openssl's certificates, the settings, a user, pika and amqpctl."""

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
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=90,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path) -> None:
    make, users, listed = blocks("sh")
    (settings,) = blocks("toml")
    (example,) = blocks("python")
    run(tmp_path, "sh", "-ec", make)
    (tmp_path / "amqpd.toml").write_text(settings, "utf-8")
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        assert load([], {}).settings.http.port is None  # the page's file is taken as it is
    finally:
        os.chdir(here)
    given = flat(tomllib.loads(settings))
    ports = {"amqp.tls.port": 0, "http.tls.port": 0}
    files = {name: tmp_path / value for name, value in given.items() if str(value).endswith((".pem", ".key"))}
    mechanisms = {"auth.mechanisms": ",".join(given["auth.mechanisms"])}
    with BrokerProcess(tmp_path / "data", settings={**given, **files, **ports, **mechanisms}) as broker:
        assert broker.ready is not None
        amqpctl = tmp_path / "amqpctl"
        amqpctl.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m amqpd.cli "$@"\n', "utf-8")
        amqpctl.chmod(0o755)
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        run(tmp_path, "sh", "-ec", users, PATH=path, AMQPD_DATA_DIR=str(broker.data_dir))
        example = example.replace("5671", str(broker.ready.listeners["amqps"][1]))
        assert run(tmp_path, sys.executable, "-P", "-c", example) == "signed, anna\n"
        listed = listed.replace("15671", str(broker.ready.listeners["https"][1]))
        assert run(tmp_path, "sh", "-ec", listed, PATH=path) == "Listing vhosts ...\nname\n/\n"
        assert "Traceback" not in broker.stderr, broker.stderr
