"""Parley: a Byzantine-fault-tolerant publish/subscribe network for organisations that do not trust each other."""

__all__ = ["__version__"]

__version__ = "0.1.0"
