"""
Kafka, by aiokafka: topics as sources, with partitions as splits, and as sinks, with transactions as epochs.
"""

from asyncstream.connectors.kafka.records import KafkaRecord, RejectedRecord
from asyncstream.connectors.kafka.sink import KafkaSink
from asyncstream.connectors.kafka.source import KafkaSource
from asyncstream.connectors.kafka.transactions import KafkaTransactionalSink

__all__ = ("KafkaRecord", "KafkaSink", "KafkaSource", "KafkaTransactionalSink", "RejectedRecord")
