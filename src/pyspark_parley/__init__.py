"""Spark imports every package called `pyspark_*` when it looks for a format: this makes `format("parley")` known."""

from __future__ import annotations

from parley.spark.source import ParleySource as DefaultSource

__all__ = ["DefaultSource"]
