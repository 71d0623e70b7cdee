"""Silver: typed readings. What cannot be one is set aside with the reason, in a table of the same tenant."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from parley.spark.pipeline import layers
from parley.spark.pipeline.tenants import TENANTS, Tenant

spark = SparkSession.active()


def define(tenant: Tenant) -> None:
    @dp.table(name=tenant.silver, comment=f"Readings of {tenant.topic}, typed and plausible.")
    def readings() -> DataFrame:
        return layers.silver(spark.readStream.table(tenant.bronze), tenant)

    @dp.table(name=tenant.dead, comment=f"Messages of {tenant.topic} that are no readings, and why.")
    def dead_letters() -> DataFrame:
        return layers.dead_letters(spark.readStream.table(tenant.bronze), tenant)


for each in TENANTS:
    define(each)
