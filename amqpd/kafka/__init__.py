"""A Kafka client: wire format, connection, idempotent producer, fetcher, administration, consumer group."""
