"""The fields that a selector can use besides headers: properties, exchange and routing key.

A field has a number for `Selectable.field` and names: `p.` or `properties.` and the property's name, with `-` or `_`
between words. The table has the properties of AMQP 0-9-1, the message headers that JMS allows in a selector, and some
AMQP 1.0 properties of RabbitMQ's filter expressions. The last are converted: creation-time is the timestamp in
milliseconds, group-id is the app-id, and a missing priority is 4.

Source: AMQP 0-9-1, basic; RabbitMQ 4.2, filter expressions; Jakarta Messaging 3.1, 3.8.1.1 and 3.5.10.
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
    """How to get the value of a field name.

    Attributes:
        number: the number of the field.
        form: the conversion in `convert_field` of `selector_ast.py`, or "".
        header: the header to read if the message has no such property, or "". RabbitMQ's JMS client sends some JMS
            fields as headers.
        default: the value if the message has neither.
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
"""Names after `p.` or `properties.`."""

HEADER_SECTION: Final[dict[str, FieldRule]] = {"priority": FieldRule(PRIORITY, default=PRIORITY_DEFAULT)}
"""Names after `h.` or `header.`: the field of AMQP 1.0's header section that RabbitMQ supports."""

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
"""JMS message headers that are not allowed in a selector (3.8.1.1)."""
