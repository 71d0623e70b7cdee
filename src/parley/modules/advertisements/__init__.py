"""Advertisements: what clients say that they publish (Chios's advertise)."""
