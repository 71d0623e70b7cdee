"""Gold: what somebody wants to know, by the hour in which it was measured.

These are views over all of silver and not streams: a reading that arrives late still changes its hour.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from parley.spark.pipeline import layers
from parley.spark.pipeline.tenants import TENANTS, Tenant

spark = SparkSession.active()


def define(tenant: Tenant) -> None:
    @dp.materialized_view(
        name=tenant.gold, comment=f"Readings of {tenant.topic} for each {tenant.place} and hour."
    )
    def windows() -> DataFrame:
        return layers.GOLD[tenant](spark.read.table(tenant.silver))


for each in TENANTS:
    define(each)
