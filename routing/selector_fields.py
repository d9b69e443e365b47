"""What a selector may ask of a message besides its headers: the properties of AMQP 0-9-1, its exchange and routing key.

A field has a number, under which `Selectable.field` gives its value (None: the message has none), and names: `p.` or
`properties.` before the property's name, with `-` or `_` between words. Beside the properties of AMQP 0-9-1 there are
those of RabbitMQ's filter expressions (AMQP 1.0) that a message of AMQP 0-9-1 has in another form, and the six message
headers that JMS lets a selector name.

Source: AMQP 0-9-1 basic; RabbitMQ 4.2, SQL filter expressions and its conversion of messages (creation-time is the
timestamp in milliseconds, group-id the app-id, a priority that is not set 4); Jakarta Messaging 3.1, 3.8.1.1 and
3.5.10.
"""

from __future__ import annotations

from typing import Final, NamedTuple

CONTENT_TYPE: Final = 0
CONTENT_ENCODING: Final = 1
DELIVERY_MODE: Final = 3
PRIORITY: Final = 4
CORRELATION_ID: Final = 5
REPLY_TO: Final = 6
EXPIRATION: Final = 7
MESSAGE_ID: Final = 8
TIMESTAMP: Final = 9
TYPE: Final = 10
USER_ID: Final = 11
APP_ID: Final = 12
CLUSTER_ID: Final = 13
EXCHANGE: Final = 14
ROUTING_KEY_FIELD: Final = 15

PRIORITY_DEFAULT: Final = 4
DELIVERY_MODE_PERSISTENT: Final = 2
PERSISTENT: Final = "PERSISTENT"
NON_PERSISTENT: Final = "NON_PERSISTENT"


class FieldRule(NamedTuple):
    """How the value of a name comes about.

    number: the field. form: what is made of its value (`formed` in `selector_ast.py`), "" nothing. header: where to
    look when the message has no such property, "" nowhere: RabbitMQ's JMS client sends some of JMS' headers as AMQP
    headers. default: what it is when it is nowhere.
    """

    number: int
    form: str = ""
    header: str = ""
    default: int | str | None = None


PROPERTIES: Final[dict[str, FieldRule]] = {
    "content-type": FieldRule(CONTENT_TYPE),
    "content-encoding": FieldRule(CONTENT_ENCODING),
    "delivery-mode": FieldRule(DELIVERY_MODE),
    "priority": FieldRule(PRIORITY),
    "correlation-id": FieldRule(CORRELATION_ID),
    "reply-to": FieldRule(REPLY_TO),
    "expiration": FieldRule(EXPIRATION, "number"),
    "message-id": FieldRule(MESSAGE_ID),
    "timestamp": FieldRule(TIMESTAMP),
    "type": FieldRule(TYPE),
    "user-id": FieldRule(USER_ID),
    "app-id": FieldRule(APP_ID),
    "cluster-id": FieldRule(CLUSTER_ID),
    "exchange": FieldRule(EXCHANGE),
    "routing-key": FieldRule(ROUTING_KEY_FIELD),
    "creation-time": FieldRule(TIMESTAMP, "milliseconds"),
    "group-id": FieldRule(APP_ID),
}
"""Behind `p.` or `properties.`."""

HEADER_SECTION: Final[dict[str, FieldRule]] = {"priority": FieldRule(PRIORITY, default=PRIORITY_DEFAULT)}
"""Behind `h.` or `header.`: RabbitMQ's one field of AMQP 1.0's header section."""

JMS_FIELDS: Final[dict[str, FieldRule]] = {
    "JMSPriority": FieldRule(PRIORITY, "", "JMSPriority", PRIORITY_DEFAULT),
    "JMSDeliveryMode": FieldRule(DELIVERY_MODE, "persistence", "JMSDeliveryMode", NON_PERSISTENT),
    "JMSMessageID": FieldRule(MESSAGE_ID, "", "JMSMessageID"),
    "JMSTimestamp": FieldRule(TIMESTAMP, "milliseconds", "JMSTimestamp"),
    "JMSCorrelationID": FieldRule(CORRELATION_ID, "", "JMSCorrelationID"),
    "JMSType": FieldRule(TYPE, "", "JMSType"),
    "JMSXUserID": FieldRule(USER_ID, "", "JMSXUserID"),
    "JMSXAppID": FieldRule(APP_ID, "", "JMSXAppID"),
}

JMS_FORBIDDEN: Final = frozenset({"JMSDestination", "JMSReplyTo", "JMSExpiration", "JMSRedelivered", "JMSDeliveryTime"})
"""Message headers of JMS that a selector may not name (3.8.1.1)."""
