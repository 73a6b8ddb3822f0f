"""
MQTT: `mqtt_server` is one for the whole session; tests take topics and clients of different names.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.servers.process import HOST, ServerProcess, do_without

__all__ = ("MqttServer", "mqtt_server", "running_mqtt")


class MqttServer(ServerProcess):
    """A mosquitto that keeps nothing on the disk."""

    @property
    def url(self) -> str:
        return f"mqtt://{HOST}:{self.port}"


@contextmanager
def running_mqtt(*more: str) -> Iterator[MqttServer]:
    """A server, as long as it is used, with these lines in its configuration besides."""
    binary = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if binary is None:
        do_without("mosquitto", "Debian: apt-get install mosquitto")
    with TemporaryDirectory(prefix="mqtt") as made:
        folder = Path(made)

        def command(port: int) -> list[str]:
            lines = (f"listener {port} {HOST}", *(more or ("allow_anonymous true",)))
            # as root it would become a user who may not read the folder
            (folder / "mosquitto.conf").write_text("\n".join(("user root", *lines)) + "\n")
            return [str(binary), "-c", str(folder / "mosquitto.conf")]

        server = MqttServer(command, folder)
        with server.running():
            yield server


@pytest.fixture(scope="session")
def mqtt_server() -> Iterator[MqttServer]:
    """One that every test may use, and leaves running."""
    with running_mqtt() as server:
        yield server
