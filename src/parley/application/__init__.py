"""What every replicated application needs: admission, exactly once, tables, expiry, quotas, receipts, kept bodies.

An application is a host, which is this package, and a list of modules (`parley.modules`). Nothing here knows any of them.
Read `module` for what a module consists of, `application` for the value made of a list of them, `machine` for what
happens in a block, and `keeping` for what a broker stores besides the state.
"""
