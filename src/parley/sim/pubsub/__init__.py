"""Pub/sub mounted on simulated replicas: its organisations and clients, and what must hold of publications."""
