"""Kafka's error codes: each one's name, and what is done about it. The only place that knows numbers.

What is done when a partition's batch is answered with one (`Remedy`):

    NONE        it is in the log
    RESEND      it may be, or is not: the same bytes again, in order, after a pause
    LEADER      as RESEND, and the partition's leader is asked for first
    SEQUENCE    an earlier batch is missing: as RESEND, from the oldest one that is not answered. If that is this
                one, Kafka has lost what it confirmed, or its memory of the producer: as FENCED
    PARTITION   it never will be, nor what follows it: nothing more is sent to this partition, and who waits is told
    FENCED      another owner has begun a new epoch, or Kafka does not know this one: nothing at all is sent any more

A code that stands not here is a newer Kafka's: RESEND, which ends at the delivery time-out. `ASK_AGAIN` are those that
a coordinator answers while it moves.

Source: Kafka, `org.apache.kafka.common.protocol.Errors`; what its own producer does, `Sender.java`.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

NONE: Final = "none"
RESEND: Final = "resend"
LEADER: Final = "leader"
SEQUENCE: Final = "sequence"
PARTITION: Final = "partition"
FENCED: Final = "fenced"


@final
class Code:
    """One row: Kafka's number and name, and the remedy."""

    def __init__(self, number: i64, name: str, remedy: str) -> None:
        self.number: i64 = number
        self.name: str = name
        self.remedy: str = remedy


_ROWS: Final = (
    (-1, "UNKNOWN_SERVER_ERROR", RESEND),
    (0, "NONE", NONE),
    (1, "OFFSET_OUT_OF_RANGE", PARTITION),
    (2, "CORRUPT_MESSAGE", PARTITION),
    (3, "UNKNOWN_TOPIC_OR_PARTITION", LEADER),
    (5, "LEADER_NOT_AVAILABLE", LEADER),
    (6, "NOT_LEADER_OR_FOLLOWER", LEADER),
    (7, "REQUEST_TIMED_OUT", RESEND),
    (8, "BROKER_NOT_AVAILABLE", LEADER),
    (9, "REPLICA_NOT_AVAILABLE", LEADER),
    (10, "MESSAGE_TOO_LARGE", PARTITION),
    (13, "NETWORK_EXCEPTION", RESEND),
    (14, "COORDINATOR_LOAD_IN_PROGRESS", RESEND),
    (15, "COORDINATOR_NOT_AVAILABLE", RESEND),
    (16, "NOT_COORDINATOR", RESEND),
    (17, "INVALID_TOPIC_EXCEPTION", PARTITION),
    (18, "RECORD_LIST_TOO_LARGE", PARTITION),
    (19, "NOT_ENOUGH_REPLICAS", RESEND),
    (20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", RESEND),
    (21, "INVALID_REQUIRED_ACKS", PARTITION),
    (29, "TOPIC_AUTHORIZATION_FAILED", PARTITION),
    (30, "GROUP_AUTHORIZATION_FAILED", PARTITION),
    (31, "CLUSTER_AUTHORIZATION_FAILED", PARTITION),
    (32, "INVALID_TIMESTAMP", PARTITION),
    (33, "UNSUPPORTED_SASL_MECHANISM", PARTITION),
    (34, "ILLEGAL_SASL_STATE", PARTITION),
    (35, "UNSUPPORTED_VERSION", PARTITION),
    (42, "INVALID_REQUEST", PARTITION),
    (43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", PARTITION),
    (44, "POLICY_VIOLATION", PARTITION),
    (45, "OUT_OF_ORDER_SEQUENCE_NUMBER", SEQUENCE),
    (46, "DUPLICATE_SEQUENCE_NUMBER", NONE),
    (47, "INVALID_PRODUCER_EPOCH", FENCED),
    (48, "INVALID_TXN_STATE", FENCED),
    (49, "INVALID_PRODUCER_ID_MAPPING", FENCED),
    (50, "INVALID_TRANSACTION_TIMEOUT", PARTITION),
    (51, "CONCURRENT_TRANSACTIONS", RESEND),
    (52, "TRANSACTION_COORDINATOR_FENCED", FENCED),
    (53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", PARTITION),
    (54, "SECURITY_DISABLED", PARTITION),
    (56, "KAFKA_STORAGE_ERROR", LEADER),
    (58, "SASL_AUTHENTICATION_FAILED", PARTITION),
    (59, "UNKNOWN_PRODUCER_ID", FENCED),
    (72, "LISTENER_NOT_FOUND", LEADER),
    (74, "FENCED_LEADER_EPOCH", LEADER),
    (75, "UNKNOWN_LEADER_EPOCH", LEADER),
    (76, "UNSUPPORTED_COMPRESSION_TYPE", PARTITION),
    (78, "OFFSET_NOT_AVAILABLE", RESEND),
    (80, "PREFERRED_LEADER_NOT_AVAILABLE", LEADER),
    (83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", LEADER),
    (87, "INVALID_RECORD", PARTITION),
    (89, "THROTTLING_QUOTA_EXCEEDED", RESEND),
    (90, "PRODUCER_FENCED", FENCED),
    (100, "UNKNOWN_TOPIC_ID", LEADER),
    (103, "INCONSISTENT_TOPIC_ID", LEADER),
    (120, "TRANSACTION_ABORTABLE", FENCED),
)

CODES: Final[dict[int, Code]] = {row[0]: Code(*row) for row in _ROWS}
ASK_AGAIN: Final = frozenset((-1, 3, 5, 6, 7, 8, 13, 14, 15, 16, 51, 89))
"""Codes with which FindCoordinator, InitProducerId and Metadata say: not now."""

DUPLICATE: Final[i64] = 46
OK: Final[i64] = 0


def code_of(number: i64) -> Code:
    """The row of that number. Cost: a look-up; a code that is not known gets one for itself."""
    row = CODES.get(number)
    return row if row is not None else Code(number, f"code {number}", RESEND)
