"""What travels between Spark and the stages: rows, keys, values, and batches of elements in envelopes."""
