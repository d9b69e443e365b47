"""The side-by-side benchmark: amqpd and RabbitMQ on one machine at the same time. README.md says how to run it."""
