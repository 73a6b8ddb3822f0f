"""
The command line: run a pipeline, enrich a file, describe a pipeline, look at checkpoints.

    asyncstream run shop.orders:pipeline --checkpoints state --every 10
    asyncstream enrich in.csv --url 'https://api.example.com/planes/{tailnum}' --out out.jsonl
    asyncstream describe shop.orders:pipeline --mermaid
    asyncstream checkpoint list state

`run` stops gracefully at the first SIGTERM or SIGINT: it reads no more, starts no call, and gives running
calls and sinks some time to end: 10 s by default, and all is over 15 s later, inside the 30 s that most
supervisors give. With checkpoints, one is taken at once and a last one at the end, and open windows stay open
for the next run. Without, the job is drained: open windows fire, for no run will go on with them. At the
second signal it stops at once, and the last checkpoint that was taken stands.

While it runs, it says on stderr from which checkpoint it goes on, and how far it has come: with a bar on a
terminal, elsewhere with a line every so often. `--dashboard PORT` shows more, on a page of this machine.

`run --dry-run` starts nothing: it says which checkpoint a run would go on from, and what becomes of each
step. It does not try whether a run could write there.
"""

from asyncstream.cli.commands import main

__all__ = ("main",)
