"""
MQTT: topics as a source, acknowledged when messages are done with, and as a sink; with QoS 1.

The client is paho-mqtt, whose network is a thread: it can acknowledge messages later than they are delivered
(`manual_ack`), which those for asyncio that stand on it do not offer.
"""

from asyncstream.connectors.mqtt.messages import MqttMessage
from asyncstream.connectors.mqtt.sink import MqttSink
from asyncstream.connectors.mqtt.source import MqttSource

__all__ = ("MqttMessage", "MqttSink", "MqttSource")
