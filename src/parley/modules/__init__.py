"""One folder per capability of an application: what a client may ask, what is kept, and what happens.

Client, node, Spark, ledger and command line use everything but `rules.py`, which is for applications and for the modules
above.
"""
