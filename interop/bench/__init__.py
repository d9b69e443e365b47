"""The side-by-side benchmark: amqpd and RabbitMQ on the same machine, in the same minutes. How to run it: README.md."""
