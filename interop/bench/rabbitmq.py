"""RabbitMQ 3.10.8 of Debian's package as the peer: found or installed, started privately, stopped at the end.

The node has its own ports, node name, epmd, data, log and cookie in the directory of the run, on 127.0.0.1, and only
the requested plugins. A RabbitMQ service of this machine is not touched. The installation (apt-get, as root only) must
not start that service either, so a policy-rc.d forbids it meanwhile.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from . import machine
from .brokers import Started, StartFailed, end

PACKAGE = "rabbitmq-server"
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The program itself: the wrapper on the PATH changes the user and the directories."""

POLICY = Path("/usr/sbin/policy-rc.d")
START_TIMEOUT_S = 90.0


def is_installed() -> bool:
    return SERVER.exists() and shutil.which("erl") is not None


def find_or_install(say: Callable[[str], None]) -> str:
    """Install RabbitMQ if needed. Return why there is none, or ""."""
    if is_installed():
        return ""
    if shutil.which("apt-get") is None:
        return f"{PACKAGE} is not installed and there is no apt-get"
    if os.geteuid() != 0:
        return f"{PACKAGE} is not installed, and only root may install it: apt install {PACKAGE}"
    say(f"installing Debian's {PACKAGE} (its service stays off)")
    made_policy = not POLICY.exists()
    if made_policy:
        POLICY.write_text("#!/bin/sh\nexit 101\n", "ascii")  # forbids invoke-rc.d to start services
        POLICY.chmod(0o755)
    try:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for step in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", PACKAGE]):
            done = subprocess.run(["apt-get", *step], env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"apt-get {step[0]} failed: {done.stderr.strip()[-300:]}"
    finally:
        if made_policy:
            POLICY.unlink()
    return "" if SERVER.exists() else f"{SERVER} is missing from the package {PACKAGE}"


def version() -> str:
    """Return the version of the installed package, from the node's library folder."""
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    return f"RabbitMQ {found[-1].name.partition('-')[2]}" if found else "RabbitMQ"


class RabbitMQ(Started):
    """A private node. plugins: those it starts with; config: the text of its rabbitmq.conf. joins: a running node whose
    cluster it joins, with the same cookie and epmd.
    """

    def __init__(
        self, directory: Path, plugins: Sequence[str] = (), config: str = "", joins: RabbitMQ | None = None
    ) -> None:
        super().__init__("rabbitmq", directory)
        self._plugins = plugins
        self._config = config
        self.version = version()
        self._joins = joins
        self._home: Path = joins._home if joins else directory
        self._epmd_port: int = joins._epmd_port if joins else machine.free_port()
        self._dist_port = machine.free_port()
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def node(self) -> str:
        """The Erlang name of the node."""
        return f"amqpd-bench-{self.port}@localhost"

    def _environment(self) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))}
        own = {
            "HOME": str(self._home),  # has the cookie
            "ERL_EPMD_PORT": f"{self._epmd_port}",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": self.host,
            "RABBITMQ_NODE_PORT": f"{self.port}",
            "RABBITMQ_DIST_PORT": f"{self._dist_port}",
            "RABBITMQ_MNESIA_BASE": "data",
            "RABBITMQ_LOG_BASE": "logs",
            "RABBITMQ_CONF_ENV_FILE": "none",
            "RABBITMQ_CONFIG_FILE": "rabbitmq",
            "RABBITMQ_ADVANCED_CONFIG_FILE": "none.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": "plugins",
            "RABBITMQ_GENERATED_CONFIG_DIR": "generated",
            "RABBITMQ_PID_FILE": "pid",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the node, with the same process id
        }
        paths = {"none", "rabbitmq", "data", "logs", "plugins", "generated", "pid", "none.config"}
        return environment | {
            key: str(self.directory / value) if value in paths else value for key, value in own.items()
        }

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "plugins").write_text(f"[{','.join(self._plugins)}].\n", "ascii")
        (self.directory / "rabbitmq.conf").write_text(self._config + self._joining(), "ascii")
        environment = self._environment()
        epmd = shutil.which("epmd")
        if epmd is None:
            raise StartFailed("Erlang's epmd is not in the search path")
        # A private epmd in the foreground: one started by the node would outlive it.
        if self._epmd is None and self._joins is None:
            self._epmd = subprocess.Popen(
                [epmd, "-port", f"{self._epmd_port}", "-address", "127.0.0.1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        self.spawn([str(SERVER)], environment)
        self.await_ready(START_TIMEOUT_S)

    def _joining(self) -> str:
        if self._joins is None:
            return ""
        discovery = "cluster_formation"
        return (
            f"{discovery}.peer_discovery_backend = classic_config\n"
            f"{discovery}.classic_config.nodes.1 = {self._joins.node}\n"
        )

    def control(self, *words: str) -> str:
        """Return the output of rabbitmqctl for this node. Raises: StartFailed if it does not run."""
        command = [str(SERVER.with_name("rabbitmqctl")), "--quiet", "--node", self.node, *words]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise StartFailed(f"rabbitmqctl {' '.join(words)}: {done.stdout} {done.stderr}")
        return done.stdout

    def stop(self) -> None:
        super().stop()
        if self._epmd is not None:
            end(self._epmd, 5.0)
            self._epmd = None
