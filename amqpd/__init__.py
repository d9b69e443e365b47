"""amqpd: an AMQP 0-9-1 broker whose queues are logs in Kafka's format."""

from pathlib import Path

__version__ = "0.1.0"

if not Path(__path__[0], "routing").exists():  # in a checkout routing/, storage/ and cli/ are beside amqpd/
    __path__.append(str(Path(__path__[0]).parent))
