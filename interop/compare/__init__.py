"""Recorded conversations, held against ours and against RabbitMQ. How to run them: README.md."""
