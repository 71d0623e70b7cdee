"""Clients that keep every rule and try to make the others wait: each attack is one function, of a given size."""
