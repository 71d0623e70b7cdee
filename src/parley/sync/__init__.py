"""Catching up: fetching certified blocks from members that have them, trusting none of them (T21). Sans-IO."""
