"""Kafka's protocol for the broker's streams and queues. README.md lists the modules.

Only `kafka.port` and `kafka.tls.port` load this package. It needs kafka-python.
"""
