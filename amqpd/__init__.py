"""amqpd: an AMQP 0-9-1 broker whose queues are logs in Kafka's format."""

__version__ = "0.1.0"
