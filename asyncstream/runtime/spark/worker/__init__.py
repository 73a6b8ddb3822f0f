"""What runs in Spark's Python workers: read `stage_run`, then `tasks` and `keyed`, which Spark calls."""
