"""What one turn of the loop does, and what holds publishers back: the end of a turn, timers, alarms."""
