"""An object store to test against: moto's S3 server on loopback, in threads of this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

__all__ = ["ObjectStore", "SECRET_KEY", "object_store"]

SECRET_KEY = "a key that nobody may see"


@dataclass(frozen=True, slots=True)
class ObjectStore:
    bucket: str
    endpoint: str

    @property
    def properties(self) -> dict[str, str]:
        """How Iceberg is told about the store."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": "tester",
            "s3.secret-access-key": SECRET_KEY,
            "s3.path-style-access": "true",
            "client.region": "us-east-1",
        }

    def keys(self, prefix: str) -> list[str]:
        """What is there, asked past all of our code."""
        found = self.client().list_objects_v2(Bucket=self.bucket, Prefix=prefix)
        return [item["Key"] for item in found.get("Contents", [])]

    def client(self) -> Any:
        return pytest.importorskip("boto3").client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="tester",
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )


@contextmanager
def object_store(bucket: str = "lake") -> Iterator[ObjectStore]:
    """A store with one empty bucket, gone with the block."""
    moto = pytest.importorskip("moto.server", reason="moto's server is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it logs every request otherwise
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        store = ObjectStore(bucket, f"http://{host}:{port}")
        store.client().create_bucket(Bucket=bucket)
        yield store
    finally:
        server.stop()
