"""Methods of the class channel; and access.request, as in 0-9, which old clients still send."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

CHANNEL_OPEN: Final = 0x0014000A
CHANNEL_OPEN_OK: Final = 0x0014000B
CHANNEL_FLOW: Final = 0x00140014
CHANNEL_FLOW_OK: Final = 0x00140015
CHANNEL_CLOSE: Final = 0x00140028
CHANNEL_CLOSE_OK: Final = 0x00140029
ACCESS_REQUEST: Final = 0x001E000A
ACCESS_REQUEST_OK: Final = 0x001E000B


class ChannelOpen(NamedTuple):
    """No arguments."""


class ChannelOpenOk(NamedTuple):
    """No arguments."""


class ChannelFlow(NamedTuple):
    active: bool = False


class ChannelFlowOk(NamedTuple):
    active: bool = False


class ChannelClose(NamedTuple):
    reply_code: int = 0
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


class ChannelCloseOk(NamedTuple):
    """No arguments."""


class AccessRequest(NamedTuple):
    realm: str = ""
    exclusive: bool = False
    passive: bool = False
    active: bool = False
    write: bool = False
    read: bool = False


class AccessRequestOk(NamedTuple):
    ticket: int = 0


# fmt: off
ChannelCommand: TypeAlias = (
    ChannelOpen | ChannelOpenOk | ChannelFlow | ChannelFlowOk | ChannelClose | ChannelCloseOk | AccessRequest
    | AccessRequestOk
)
# fmt: on

# Number, name, class, plan of arguments.
CHANNEL_METHODS: Final[tuple[tuple[int, str, type[ChannelCommand], str], ...]] = (
    (CHANNEL_OPEN, "channel.open", ChannelOpen, "N"),
    (CHANNEL_OPEN_OK, "channel.open-ok", ChannelOpenOk, "Z"),
    (CHANNEL_FLOW, "channel.flow", ChannelFlow, "b"),
    (CHANNEL_FLOW_OK, "channel.flow-ok", ChannelFlowOk, "b"),
    (CHANNEL_CLOSE, "channel.close", ChannelClose, "hkhh"),
    (CHANNEL_CLOSE_OK, "channel.close-ok", ChannelCloseOk, ""),
    (ACCESS_REQUEST, "access.request", AccessRequest, "nbbbbb"),
    (ACCESS_REQUEST_OK, "access.request-ok", AccessRequestOk, "h"),
)
