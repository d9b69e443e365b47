"""What goes with time: retention, compaction, upkeep, departed directories."""
