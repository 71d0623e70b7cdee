"""Retention: how long messages stay, by block time (P5)."""
