"""Brokers that lie on purpose, for demonstrations and tests: only in networks whose genesis file allows it."""
