"""What runs in Spark's workers: read `stage_run` and `turn`, then `tasks` and `keyed`, which Spark calls."""
