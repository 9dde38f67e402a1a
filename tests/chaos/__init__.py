"""Real brokers under real faults: killed, stopped, cut off from one another. `make chaos` runs it."""
