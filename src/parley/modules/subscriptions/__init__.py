"""Subscriptions and the gap-free orders of their constraints (P6)."""
