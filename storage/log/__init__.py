"""The log itself: records, batches, segments and their indexes, reading, recovery."""
