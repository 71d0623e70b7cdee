"""Settings of the payload dial: who can read what is published."""
