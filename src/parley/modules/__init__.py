"""One folder per capability of an application: what a client may ask, what is kept, and what happens.

`operations.py` and `tables.py` are for everybody; `rules.py` is for applications alone.
"""
