"""From a message to the queues it goes to: publishers, and what is published once more."""
