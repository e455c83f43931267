"""What every request passes before a protocol reads it: keys, bounds for bodies, answers to faults, and the log."""
