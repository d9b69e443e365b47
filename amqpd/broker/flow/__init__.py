"""Loop turns, timers and alarms."""
