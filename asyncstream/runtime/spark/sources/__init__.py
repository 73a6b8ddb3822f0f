"""
Any source of a pipeline as a format of Spark's: `spark.readStream.format(...)` and `spark.read.format(...)`.
"""

from asyncstream.runtime.spark.sources.register import register_source

__all__ = ("register_source",)
