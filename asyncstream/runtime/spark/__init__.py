"""
Runs a pipeline on Spark, through PySpark: the same operators, cut into stages that Spark distributes.

In reading order: `cut` (stages), `assembly` (the operators of a stage), `loop` and `run` (a stage in a
worker), `parcels` and `rows` (how elements travel), `tasks` (what Spark calls), `keyed` (state), `sparkplan`
(DataFrames). `enrich` and `column` are single async steps for any PySpark job.
"""

from asyncstream.runtime.spark.column import enrich_column
from asyncstream.runtime.spark.enrich import enrich, enrich_apart
from asyncstream.runtime.spark.extra import local_spark
from asyncstream.runtime.spark.sparkplan import KEY_GROUPS, SparkPlan, plan

__all__ = ("KEY_GROUPS", "SparkPlan", "enrich", "enrich_apart", "enrich_column", "local_spark", "plan")
