"""Measurements of a network of real brokers under load of its own making: `parley bench pub`, `sub` and the others."""
