"""TLS for the HTTP port: the files that Flight has, looked at again with each new connection."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cheroot.makefile import StreamReader, StreamWriter
from cheroot.ssl import Adapter

from sparkport.auth.files import Reloaded
from sparkport.errors import InvalidArgument

__all__ = ["CERTIFICATE_SUBJECT", "TlsAdapter", "TlsFiles", "certificate_subject"]

CERTIFICATE_SUBJECT = "sparkport.certificate_subject"
"""In the environment of a request: whom the client's certificate names, where it has shown one."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With ``client_ca`` a client may show a certificate; it need not, so that probes get through."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @property
    def all(self) -> tuple[Path, ...]:
        return (self.certificate, self.key) + (() if self.client_ca is None else (self.client_ca,))


class TlsAdapter(Adapter):
    """Leaves the handshake to the thread that serves the connection: the one that accepts must wait for nobody."""

    def __init__(self, files: TlsFiles) -> None:
        self._contexts = Reloaded(files.all, lambda: _context(files), interval=0.0)

    def bind(self, sock: socket.socket) -> socket.socket:
        return sock

    def wrap(self, sock: socket.socket) -> tuple[socket.socket, dict[str, str]]:
        wrapped = self._contexts.current().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return wrapped, {}

    def get_environ(self) -> dict[str, str]:
        return {}

    def makefile(self, sock: socket.socket, mode: str = "r", bufsize: int = -1) -> Any:
        return (StreamReader if "r" in mode else StreamWriter)(sock, mode, bufsize)


def certificate_subject(connection: ssl.SSLSocket) -> str | None:
    """The common name of a verified certificate, else its first alternative name, as Flight tells them."""
    shown: dict[str, Any] = connection.getpeercert() or {}
    names = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    names += [value for _, value in shown.get("subjectAltName", ())]
    return next((str(name) for name in names if name), None)


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as exc:
        names = ", ".join(map(str, files.all))
        raise InvalidArgument(f"TLS of the HTTP port: {names} cannot be used: {exc.strerror or exc}") from exc
    return context


def _no_password() -> str:
    """OpenSSL would ask on the terminal."""
    raise InvalidArgument("the key of the HTTP port's certificate is encrypted: it is needed without a password")
