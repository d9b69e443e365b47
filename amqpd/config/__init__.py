"""The server's settings: where they come from, and their types. `Settings` is passed as an argument; none is global.

A setting has one name in three places. `amqp.tls.verify_peer` is `verify_peer` under `[amqp.tls]` in the TOML file,
`AMQPD_AMQP__TLS__VERIFY_PEER` in the environment and `--amqp.tls.verify-peer` on the command line.

Every start imports this package, so it imports neither the server nor asyncio.
"""

from amqpd.config.loader import EXIT_USAGE, LoadedSettings, SettingsError, load
from amqpd.config.schema import Settings, rows, value_of

__all__ = ["EXIT_USAGE", "LoadedSettings", "Settings", "SettingsError", "load", "rows", "value_of"]
