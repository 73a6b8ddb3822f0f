"""
Drives a pipeline in an asyncio event loop. In reading order:

| modules | what they are |
|---|---|
| `reading`, `writing` | what pulls a source; what feeds a sink |
| `naming` | how errors of both come to name their step |
| `wiring`, `run`, `run_parts`, `run_tasks` | one run: connected, from opening to closing, its tasks |
| `job`, `exchange`, `tickets` | what the user holds of a run; what goes in and out, also from other threads |
| `threads`, `from_thread`, `process` | a job in a thread of its own, seen from other threads, as a process |
| `jobclock`, `wakeups` | processing time, and who is woken by it |
| `pacing` | what one watermark makes a step do, in slices |
| `checkpoints`, `next_checkpoint` | when one is taken, and how; who has asked for the next |
| `checkpoint_checks`, `tenure` | of what one can be; by whom it is taken |
| `captures`, `table_log` | what is in it; tables, by what has changed |
| `recovery`, `dry_run`, `restarts`, `snapshot` | going on from one, only asking, again and again; by hand |
| `spilling`, `numbering`, `journeys` | state on disk; which element is which; which ones are followed |
| `inspection`, `blocking`, `status`, `progress`, `state_view` | how a job stands, and what is in its way |
| `measuring`, `watching`, `standing_still`, `inside` | metrics; who holds the loop; a look; who may wait |
"""

from asyncstream.runtime.aio.dry_run import DryRun, dry_run
from asyncstream.runtime.aio.job import Job
from asyncstream.runtime.aio.progress import JobProgress, SourceProgress
from asyncstream.runtime.aio.recovery import StepRecovery
from asyncstream.runtime.aio.restarts import Restarts
from asyncstream.runtime.aio.run_parts import OPEN_SECONDS
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
