"""Hosts for tests: network namespaces on one bridge, created and removed by the test. Needs root.

    with Network(3) as network:
        network.hosts[0].prefix      # before a command: it runs on that host
        network.hosts[0].unplug()    # drop all traffic
        network.hosts[0].plug()
        network.hosts[0].drop_from(network.hosts[1].address)  # drop packets from there, but not to there
        network.hosts[0].drop_to(network.hosts[1].address)
        network.hosts[0].heal()

This process is on the bridge too, with the first address. Packets stay on this machine: the bridge has no uplink.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_NETWORK = "10.213.{}"
_TABLE = "amqpd"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)


@dataclass(frozen=True)
class Host:
    """A place to run a program. name: of its namespace, "" for this machine's own network."""

    name: str
    address: str
    plug_name: str = ""

    @property
    def prefix(self) -> list[str]:
        """The command prefix that runs a program on this host.

        `ip netns exec` would make a mount namespace, too, and keep a disk mounted that another test unmounts.
        """
        return ["nsenter", f"--net=/run/netns/{self.name}"] if self.name else []

    def unplug(self) -> None:
        """Cut the host off: packets are dropped silently."""
        _ip("link", "set", self.plug_name, "down")

    def plug(self) -> None:
        """Undo `unplug`."""
        _ip("link", "set", self.plug_name, "up")

    def drop_from(self, *addresses: str) -> None:
        """Drop packets from these addresses silently. Needs nft."""
        self._drop("input", "saddr", addresses)

    def drop_to(self, *addresses: str) -> None:
        """Drop packets to these addresses silently. Needs nft."""
        self._drop("output", "daddr", addresses)

    def heal(self) -> None:
        """Undo `drop_from` and `drop_to`."""
        self._nft(f"add table inet {_TABLE}", f"delete table inet {_TABLE}")

    def _drop(self, hook: str, which: str, addresses: tuple[str, ...]) -> None:
        rules = [f"add rule inet {_TABLE} {hook} ip {which} {address} drop" for address in addresses]
        chain = f"add chain inet {_TABLE} {hook} {{ type filter hook {hook} priority 0; }}"
        self._nft(f"add table inet {_TABLE}", chain, *rules)

    def _nft(self, *commands: str) -> None:
        subprocess.run(
            [*self.prefix, "nft", "-f", "-"],
            input="\n".join(commands) + "\n",
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        )


def missing() -> str:
    """Return why such hosts cannot be created here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces are root's"
    if shutil.which("ip") is None:
        return "no ip: apt install iproute2"
    if shutil.which("nft") is None:
        return "no nft: apt install nftables"
    name = f"amqpd-{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
        _ip("netns", "delete", name)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces: {error.stderr.strip()}"
    return ""


class Network:
    """A bridge and its hosts. number: 0 to 7, separates two networks of one run and of two runs."""

    def __init__(self, count: int, number: int = 0) -> None:
        self._mark = f"{os.getpid() % 100000}{chr(ord('a') + number % 26)}"
        self._bridge = f"amqb{self._mark}"
        self._base = _NETWORK.format((os.getpid() * 8 + number) % 256)
        self.address = f"{self._base}.1"
        self.hosts = [
            Host(f"amqpd-{self._mark}-{index}", f"{self._base}.{index + 10}", f"amqp{self._mark}{index}")
            for index in range(count)
        ]

    def __enter__(self) -> Self:
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("address", "add", f"{self.address}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for host in self.hosts:
                _ip("netns", "add", host.name)
                _ip("link", "add", host.plug_name, "type", "veth", "peer", "name", "eth0", "netns", host.name)
                _ip("link", "set", host.plug_name, "master", self._bridge)
                _ip("link", "set", host.plug_name, "up")
                _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
                _ip("-n", host.name, "link", "set", "eth0", "up")
                _ip("-n", host.name, "link", "set", "lo", "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for command in (
            *(("netns", "delete", host.name) for host in self.hosts),
            *(("link", "delete", host.plug_name) for host in self.hosts),
            ("link", "delete", self._bridge),
        ):
            # Parts that were never created, or went with their namespace, need no removal.
            subprocess.run(["ip", *command], check=False, capture_output=True, timeout=30)
