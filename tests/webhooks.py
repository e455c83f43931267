"""A receiver of alerts by webhook, on the loopback."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Webhooks(ThreadingHTTPServer):
    """A receiver that keeps what it accepts, by path, after it has answered 500 as often as told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Webhook)
        self.accepted: list[tuple[str, dict[str, Any]]] = []
        self.num_refused = 0
        self.refuse_next = 0

    @contextmanager
    def serving(self) -> Iterator[Self]:
        with self:
            threading.Thread(target=self.serve_forever, daemon=True).start()
            yield self
            self.shutdown()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"

    def texts(self, path: str) -> list[str]:
        return [json.dumps(message) for where, message in self.accepted if where == f"/{path}"]


class _Webhook(BaseHTTPRequestHandler):
    server: Webhooks

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_refused = self.server.refuse_next > 0
        if is_refused:
            self.server.refuse_next -= 1
            self.server.num_refused += 1
        else:
            self.server.accepted.append((self.path, message))
        self.send_response(500 if is_refused else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass
