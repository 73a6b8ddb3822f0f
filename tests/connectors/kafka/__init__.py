"""Kafka, against servers that speak its protocol."""
