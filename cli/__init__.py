"""amqpctl: a client of the admin API, with rabbitmqctl's commands, options, output and exit codes. See README.md."""
