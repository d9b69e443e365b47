"""Making safe: what a turn has gathered is written and synced."""
