"""
JSON Lines on Spark, from pip alone: files of events as a stream in the order of event time, and a folder in
which every micro-batch arrives once.

In reading order: `frames` (what users call), `lines` (places in files), `columns` (JSON and Arrow), `order`
and `micro_batches` (which rows come next), `rows` (what a task reads), `sink`, `format` (Spark's classes).
"""

from asyncstream.runtime.spark.json_lines.frames import read_json_lines, stream_json_lines, write_json_lines

__all__ = ("read_json_lines", "stream_json_lines", "write_json_lines")
