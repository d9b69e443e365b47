"""Messages that wait until they are due: see README.md."""
