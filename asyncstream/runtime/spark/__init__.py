"""
Runs a pipeline on Spark, through PySpark: the same operators, cut into stages that Spark distributes.

In reading order: `stages` (where a graph is cut), `wire` (how elements travel between them), `worker` (a
stage at work), `state_transfer` (state that comes from elsewhere, or goes there), `observe` (what is
counted), `pruning` (which columns are read), `stage_frames` (the stages as DataFrames), `ends` (what is given
to a plan), `plan` (what the user holds of them), and `compatibility` (what Spark does otherwise).
`enrich` and `column` are single async steps for any PySpark job. Where its rows come from and go to:
`sources` (any source of ours as a format of Spark's), `once` (what writes a micro-batch once), `json_lines`.
"""

from asyncstream.runtime.spark.column import enrich_column
from asyncstream.runtime.spark.enrich import enrich, enrich_apart
from asyncstream.runtime.spark.failures import failure_text
from asyncstream.runtime.spark.json_lines import read_json_lines, stream_json_lines, write_json_lines
from asyncstream.runtime.spark.once import once_in_database, once_in_delta, once_in_folders
from asyncstream.runtime.spark.plan import SparkPlan
from asyncstream.runtime.spark.progress import log_progress
from asyncstream.runtime.spark.session import local_spark, need_java
from asyncstream.runtime.spark.settings import PlanSettings
from asyncstream.runtime.spark.sources import register_source

__all__ = (
    "PlanSettings",
    "SparkPlan",
    "enrich",
    "enrich_apart",
    "enrich_column",
    "failure_text",
    "local_spark",
    "log_progress",
    "need_java",
    "once_in_database",
    "once_in_delta",
    "once_in_folders",
    "read_json_lines",
    "register_source",
    "stream_json_lines",
    "write_json_lines",
)
