"""What is declared, and whether it is on disk: vhosts, exchanges, queues, bindings."""
