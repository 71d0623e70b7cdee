"""The dials of a topic: how its payloads are sealed, and how its messages are matched. One file per setting."""
