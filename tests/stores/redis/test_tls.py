"""`rediss://`: a server that is trusted by its certificate, and one that is not."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from keepstate_testing.servers import Redis

from keepstate.errors import InvalidError
from keepstate.stores.protocol import Put
from keepstate.testing.store_contract.stage import applied, value_of
from tests.stores.redis.stage import A, RedisStage


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "keepstate test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    folder.chmod(0o755)
    (folder / "key.pem").chmod(0o644)
    return folder


@pytest.fixture
def tls_url(certificate: Path, redis_server: Redis) -> Iterator[str]:
    """A front before the server that speaks TLS, and only to who shows a certificate that it trusts."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate / "cert.pem")
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    front = TlsFront(redis_server.port, context)
    yield f"rediss://127.0.0.1:{front.start()}"
    front.stop()


class TlsFront:
    """Ends TLS and forwards to a port, in an event loop of its own: the wheels' servers speak no TLS."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._target, self._context = port, context
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(
            lambda loop, context: None
        )  # refused handshakes are the tests' subject
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> int:
        """Return the port on which it listens."""
        self._thread.start()
        serving = asyncio.start_server(self._carry, "127.0.0.1", 0, ssl=self._context)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result(60)
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.05)  # what was closed is gone in the loop's next rounds

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(self._pump(reader, to_server), self._pump(from_server, writer))

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


class TestTls(RedisStage):
    async def test_a_server_of_a_trusted_certificate_is_used(
        self, tls_url: str, certificate: Path, space: str
    ) -> None:
        shown = f"tls_cert={certificate}/cert.pem&tls_key={certificate}/key.pem"
        store = await self.open(f"{tls_url}?tls_ca={certificate}/cert.pem&{shown}")
        listener = store.listen([space])
        await listener.wait(1)

        await applied(store, space, Put(A, bytes(1 << 20)))

        assert await value_of(store, space, A) == bytes(1 << 20)
        listener.close()
        await store.close()

    async def test_a_server_that_nobody_vouches_for_is_refused(self, tls_url: str) -> None:
        with pytest.raises(InvalidError, match="Name trusted certificates with tls_ca="):
            await self.open(tls_url)
