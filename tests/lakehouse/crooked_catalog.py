"""A REST catalog that plays what can go wrong between it and us."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Reply", "crooked"]

Json = dict[str, Any]
Reply = Callable[[BaseHTTPRequestHandler], tuple[int, object] | None]


@contextmanager
def crooked(reply: Reply, config: Json | None = None) -> Iterator[str]:
    """A catalog that answers as told, to a request with its ``body``; None means that it hangs up."""

    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.close_connection = True
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                return
            self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = (200, config or {}) if self.path.startswith("/v1/config") else reply(self)
            if answer is not None:
                body = answer[1] if isinstance(answer[1], bytes) else json.dumps(answer[1]).encode()
                self.send_response(answer[0])
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
