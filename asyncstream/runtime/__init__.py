"""
Who drives a pipeline: `aio` in an asyncio event loop, `spark` on Spark.
"""
