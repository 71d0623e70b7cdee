"""Frames over TLS between brokers and from clients, and the limits on what strangers may use."""
