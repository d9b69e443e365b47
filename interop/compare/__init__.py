"""Recorded conversations, compared between amqpd and RabbitMQ. README.md says how to run them."""
