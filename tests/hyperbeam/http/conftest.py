import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hyperbeam.http import Server, Upstream

from .support import Backend, Client, Handler


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Callable[[], Any]]:
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def serve(stack: AsyncExitStack) -> Any:
    """Starts a server around `answer(request)` on a free port."""

    async def start(answer: Callable[..., Any], **options: Any) -> Server:
        server = Server(Handler(answer), port=0, **options)
        await server.start()
        stack.push_async_callback(server.drain, 0)
        return server

    return start


@pytest.fixture
async def connect(stack: AsyncExitStack) -> Any:
    """Opens a raw client connection to a server."""

    async def open_client(server: Server) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", server.port))
        stack.push_async_callback(client.close)
        return client

    return open_client


@pytest.fixture
async def backend(stack: AsyncExitStack) -> Any:
    """Starts a backend whose connections are served by `script(connection)`."""

    async def start(script: Callable[..., Any], **options: Any) -> Backend:
        backend = Backend(script)
        await backend.start(**options)
        stack.push_async_callback(backend.stop)
        return backend

    return start


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    yield upstream
    await upstream.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PEM file with a key and a self-signed certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(secret + signed.public_bytes(serialization.Encoding.PEM))
    return path
