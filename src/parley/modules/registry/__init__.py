"""Clients, their attributes and their rights (P26)."""
