"""
Drives a pipeline in an asyncio event loop: read `endpoints` (what is pulled and pushed), then `run`
(the parts of one job, from opening to closing), `job` (what the user holds of it), and `checkpoints`.
"""

from asyncstream.runtime.aio.dry_run import DryRun, dry_run
from asyncstream.runtime.aio.job import Job
from asyncstream.runtime.aio.progress import JobProgress, SourceProgress
from asyncstream.runtime.aio.recovery import StepRecovery
from asyncstream.runtime.aio.restarts import Restarts
from asyncstream.runtime.aio.run import OPEN_SECONDS
from asyncstream.runtime.aio.snapshot import JobSnapshot
from asyncstream.runtime.aio.status import (
    CheckpointStatus,
    FailedElement,
    JobState,
    JobStatus,
    Latency,
    OldestCall,
    StepStatus,
)
from asyncstream.runtime.aio.threads import ThreadedJob

__all__ = (
    "OPEN_SECONDS",
    "CheckpointStatus",
    "DryRun",
    "FailedElement",
    "Job",
    "JobProgress",
    "JobSnapshot",
    "JobState",
    "JobStatus",
    "Latency",
    "OldestCall",
    "Restarts",
    "SourceProgress",
    "StepRecovery",
    "StepStatus",
    "ThreadedJob",
    "dry_run",
)
