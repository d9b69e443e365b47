"""The server's settings: where they come from, and their types. `Settings` is passed as an argument; none is global.

A setting has one name in three places. `amqp.tls.verify_peer` is `verify_peer` under `[amqp.tls]` in the TOML file,
`AMQPD_AMQP__TLS__VERIFY_PEER` in the environment and `--amqp.tls.verify-peer` on the command line.

Every start imports this package, so it imports neither the server nor asyncio.
"""

from amqpd.config.loader import EXIT_USAGE, LoadedSettings, SettingsError, load
from amqpd.config.schema import (
    AmqpSettings,
    AuthSettings,
    ClusterSettings,
    DefaultSettings,
    DefinitionsSettings,
    HttpSettings,
    HttpTlsSettings,
    LimitSettings,
    LogSettings,
    MetadataSettings,
    Settings,
    StorageSettings,
    TlsSettings,
    rows,
    value_of,
)
from amqpd.config.types import Setting

__all__ = [
    "EXIT_USAGE",
    "AmqpSettings",
    "AuthSettings",
    "ClusterSettings",
    "DefaultSettings",
    "DefinitionsSettings",
    "HttpSettings",
    "HttpTlsSettings",
    "LimitSettings",
    "LoadedSettings",
    "LogSettings",
    "MetadataSettings",
    "Setting",
    "Settings",
    "SettingsError",
    "StorageSettings",
    "TlsSettings",
    "load",
    "rows",
    "value_of",
]
