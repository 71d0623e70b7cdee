"""Settings of the matching dial: what brokers see of tags and constraints."""
