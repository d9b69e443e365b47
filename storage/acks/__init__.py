"""Which offsets of a log are done with, and what is removed for it."""
