"""
Drives a pipeline in an asyncio event loop: read `endpoints` (what is pulled and pushed), then `job`, then
`checkpoints`.
"""

from asyncstream.runtime.aio.job import Job
from asyncstream.runtime.aio.snapshot import JobSnapshot

__all__ = ("Job", "JobSnapshot")
