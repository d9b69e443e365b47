"""The settings of the server, and how they are found. `Settings` is passed in wherever it is needed; none is global.

A setting has one name in four places. `amqp.tls.verify_peer` is `verify_peer` under `[amqp.tls]` in the TOML file,
`AMQPD_AMQP__TLS__VERIFY_PEER` in the environment and `--amqp.tls.verify-peer` on the command line.

`kinds` (types and bounds), `row` (one setting), `tree` (all settings), `loading` (where a value comes from). The others
import `help` when they show it. Nothing here imports the server or asyncio: all of it is part of every start.
"""

from amqpd.config.loader import EXIT_USAGE, LoadedSettings, SettingsError, load
from amqpd.config.row import Setting
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
