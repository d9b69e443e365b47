"""`amqpd --ephemeral`: a broker for the tests of any language. It needs no configuration and leaves nothing behind.

It listens on free ports of 127.0.0.1 and keeps its data in a temporary directory, which it removes at its end. When
clients can connect, it prints one line with its URLs. It ends with SIGTERM, when the process that started it ends, or
when its standard input is closed, if that is a pipe or a socket. The input is never read.

A setting of the command line overrides these. Those of the file and the environment do not: a developer's `amqpd.toml`
names the data directory, the database, the ports, the log and maybe the cluster of another broker.
"""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from amqpd.config import EXIT_USAGE, load
from amqpd.listeners import ANY, ANY_IPV6, format_host
from amqpd.server import EXIT_UNAVAILABLE, run

if TYPE_CHECKING:
    from amqpd.config.loader import LoadedSettings
    from amqpd.listeners import Listener
    from amqpd.protocol_server import Guest
    from amqpd.server import Server

HOST: Final = "127.0.0.1"
PARENT_CHECK_MS: Final = 1000


def run_ephemeral(argv: Sequence[str], environ: Mapping[str, str], started: float, guests: Sequence[Guest] = ()) -> int:
    """Run the broker until it is stopped, and return its exit code, as `amqpd.server.run`.

    Args:
        argv: Arguments of the command line, `--ephemeral` included.
        started: Value of `time.monotonic` at the start.
        guests: As for `amqpd.server.Server`.
    """
    parent = os.getppid()
    try:
        directory = tempfile.TemporaryDirectory(prefix="amqpd-", ignore_cleanup_errors=True)
    except OSError as error:
        print(f"amqpd: no temporary directory: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE

    def end(*_: object) -> None:
        directory.cleanup()
        os._exit(EXIT_UNAVAILABLE)

    for number in (signal.SIGTERM, signal.SIGINT):  # until the server has its own handler
        signal.signal(number, end)
    with directory as data_dir:
        threading.Thread(target=_watch, args=(parent,), name="amqpd-parent", daemon=True).start()
        arguments = [*_defaults(data_dir), *argv]
        loaded = load(arguments, environ)
        source = loaded.sources["cluster.kafka"]
        if loaded.settings.cluster.kafka and source != "command line":
            print(f"amqpd: --ephemeral joins no cluster: cluster.kafka is in {source}", file=sys.stderr)
            return EXIT_USAGE
        try:
            return run(
                loaded.settings,
                started,
                lambda: load(arguments, environ).settings,
                guests,
                loaded.notes,
                ready_text=partial(_ready_text, loaded),
            )
        finally:
            # A second signal must not end the removal of the directory: a parent often sends one and then ends.
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)


def _defaults(data_dir: str) -> list[str]:
    settings: dict[str, object] = {"data-dir": data_dir, "amqp.port": 0, "http.port": 0, "log.level": "warning"}
    settings |= {f"{name}.port": "off" for name in ("amqp.tls", "http.tls", "metrics", "kafka", "kafka.tls")}
    settings |= dict.fromkeys(("metadata.url", "log.file", "kafka.advertised", "kafka.tls.advertised"), "")
    settings["auth.password-hashing"] = "rabbit_password_hashing_sha256"  # argon2id takes 21 ms at the start
    settings |= {f"{section}.host": HOST for section in ("amqp", "http", "kafka")}
    return [f"--{name}={value}" for name, value in settings.items()]


def _ready_text(loaded: LoadedSettings, server: Server) -> str:
    """Return the line for the program that has started the broker: URLs with spaces between, or a JSON object."""
    first = server.settings.default
    login = f"{quote(first.user, safe='')}:{quote(first.password, safe='')}"
    vhost = quote(first.vhost, safe="")  # %2F for the first vhost: Java's client takes a lone slash for ""
    addresses = {each.protocol: _address(each) for each in reversed(server.listeners) if each.port}
    urls = {}
    if "amqp" in addresses:
        urls["amqp_url"] = f"amqp://{login}@{addresses['amqp']}/{vhost}"
    if "http" in addresses:
        urls["http_url"] = f"http://{addresses['http']}"
    if "kafka" in addresses:
        urls["kafka_bootstrap"] = addresses["kafka"]
    if loaded.formatter == "json":
        return json.dumps({**urls, "pid": os.getpid()})
    return " ".join(urls.values())


def _address(listener: Listener) -> str:
    """Return host and port for clients of this machine."""
    host = {ANY: HOST, ANY_IPV6: "::1"}.get(listener.host, listener.host)
    return f"{format_host(host)}:{listener.port}"


def _watch(parent: int) -> None:
    """End this process with SIGTERM when standard input is closed or the parent has ended."""
    poll = select.poll()
    with suppress(OSError):  # it is closed already, as for a service
        mode = os.fstat(0).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            poll.register(0, select.POLLRDHUP)
    while not poll.poll(PARENT_CHECK_MS) and os.getppid() == parent:
        pass
    os.kill(os.getpid(), signal.SIGTERM)
