"""Staging: batches that count only when their writer commits the stage, whole and once (P23)."""
