"""Real brokers under real faults, and a judge of what clients saw: the Jepsen-style test of a whole network."""
