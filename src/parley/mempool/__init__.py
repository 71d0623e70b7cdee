"""Batches before they are ordered: kept, passed on, fetched when missing, offered to the leader (P4, T20). Sans-IO."""
