"""
Certificates for servers on the loopback address, of an authority that was made for one session.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from tests.servers.process import HOST

__all__ = ("Certificates", "certificates")


@dataclass(frozen=True)
class Certificates:
    """
    What a server shows, and what a client trusts.

    Attributes:
        authority: the file of the authority's certificate.
        certificate: the file of the server's certificate.
        key: the file of its key.
    """

    authority: Path
    certificate: Path
    key: Path

    def client(self) -> ssl.SSLContext:
        """What trusts the server."""
        return ssl.create_default_context(cafile=self.authority)

    def server(self) -> ssl.SSLContext:
        """What a server in this process shows."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """One set for the whole session."""
    folder = tmp_path_factory.mktemp("certificates")
    found = Certificates(folder / "authority.pem", folder / "certificate.pem", folder / "key.pem")
    authority = trustme.CA()
    shown = authority.issue_cert(HOST, "localhost")
    authority.cert_pem.write_to_path(found.authority)
    found.certificate.write_bytes(b"".join(part.bytes() for part in shown.cert_chain_pems))
    shown.private_key_pem.write_to_path(found.key)
    return found
