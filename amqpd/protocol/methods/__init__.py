"""The methods of AMQP 0-9-1, a file per class: number, arguments as a NamedTuple, and the plan of these."""
