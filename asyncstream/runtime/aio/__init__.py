"""
Drives a pipeline in an asyncio event loop: read `endpoints` (what is pulled and pushed), then `job`.
"""

from asyncstream.runtime.aio.job import Job, JobSnapshot

__all__ = ("Job", "JobSnapshot")
