"""Bronze: what each tenant's devices published, read as that tenant, checked by the source and kept as it came."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from parley.spark.pipeline import layers
from parley.spark.pipeline.tenants import TENANTS, Tenant

spark = SparkSession.active()


def define(tenant: Tenant) -> None:
    @dp.table(name=tenant.bronze, comment=f"Verified messages of {tenant.topic}.")
    def rows() -> DataFrame:
        return layers.bronze(
            spark.readStream.format("parley")
            .options(**network())
            .option("identity", configured(f"{tenant.topic}.identity"))
            .option("subscribe", tenant.topic)
            .option("startingOffsets", "earliest")
            .load()
        )


def network() -> dict[str, str]:
    """Names and paths that every node has: a key never comes into a plan."""
    return {name: value for name in ("directory", "context") if (value := configured(name))}


def configured(name: str) -> str:
    return spark.conf.get(f"spark.parley.{name}", "") or ""


for each in TENANTS:
    define(each)
