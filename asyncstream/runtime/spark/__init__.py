"""
Runs a pipeline on Spark, through PySpark: the same operators, cut into stages that Spark distributes.

In reading order: `cut` (stages), `assembly` (the operators of a stage), `loop` and `run` (a stage in a
worker), `parcels` and `rows` (how elements travel), `tasks` (what Spark calls), `keyed` (state), `heritage`
(state that comes from elsewhere, or goes there), `observe` (what is counted), `sparkplan` (DataFrames).
`enrich` and `column` are single async steps for any PySpark job; `json_lines` is where its rows come from and
go to.
"""

from asyncstream.runtime.spark.column import enrich_column
from asyncstream.runtime.spark.enrich import enrich, enrich_apart
from asyncstream.runtime.spark.extra import local_spark, need_java
from asyncstream.runtime.spark.json_lines import read_json_lines, stream_json_lines, write_json_lines
from asyncstream.runtime.spark.progress import log_progress
from asyncstream.runtime.spark.settings import PlanSettings
from asyncstream.runtime.spark.sparkplan import SparkPlan

__all__ = (
    "PlanSettings",
    "SparkPlan",
    "enrich",
    "enrich_apart",
    "enrich_column",
    "local_spark",
    "log_progress",
    "need_java",
    "read_json_lines",
    "stream_json_lines",
    "write_json_lines",
)
