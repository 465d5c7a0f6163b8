"""Serve the report of a run on this machine only, and answer queries with images."""

import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from selfsight.errors import UserError

LOOPBACK = "127.0.0.1"
AT_ONCE = 2  # images that are read at a time: each may have as many bytes as the limit
PIECE = 1 << 20  # bytes of it that are asked for at once
UPLOAD_SECONDS = 60  # for a whole image: one that comes byte by byte would keep others waiting
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def build_server(
    page: str, answer: Callable[[bytes], dict[str, Any]], *, port: int, max_bytes: int
) -> ThreadingHTTPServer:
    """Bind a server of the page to the loopback address; call its `serve_forever`.

    GET / returns the page, and POST /query the answer to an image. `answer` raises a ValueError
    with the reason if it cannot answer. Another site could point its own name to this address, or
    send images here, so the names of host and origin are checked.
    """
    reading, answering = threading.BoundedSemaphore(AT_ONCE), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # seconds without a byte
        server_version, sys_version = "selfsight", ""

        def do_GET(self) -> None:
            if self._is_own() and self._is_at("/"):
                self._send(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8")

        def do_POST(self) -> None:
            if not (self._is_own() and self._is_at("/query")):
                return
            length = self.headers.get("Content-Length", "")
            if not (length.isascii() and length.isdecimal()):
                return self._refuse(HTTPStatus.LENGTH_REQUIRED, "The size of the image is missing.")
            if len(length) > 15 or int(length) > max_bytes:
                text = f"The image has more than {max_bytes / 2**20:,.0f} MiB."
                return self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
            with reading:
                data = self._read(int(length))
                if len(data) < int(length):
                    return self._refuse(HTTPStatus.BAD_REQUEST, "The image is incomplete.")
                try:
                    with answering:
                        found = answer(data)
                except ValueError as error:
                    text = f"The image cannot be read: {error}."
                    return self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, text)
                except Exception as error:  # the server continues
                    text = f"The image could not be compared: {error}"
                    return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, text)
            self._send_json(HTTPStatus.OK, found)

        def _read(self, length: int) -> bytes:
            """Read the image, or what has come of it in time."""
            data, until = bytearray(), time.monotonic() + UPLOAD_SECONDS
            while len(data) < length and time.monotonic() < until:
                part = self.rfile.read1(min(length - len(data), PIECE))
                if not part:
                    break
                data += part
            return bytes(data)

        def _is_own(self) -> bool:
            """Whether the request names this server and was not sent by another site."""
            names = {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}  # type: ignore[attr-defined]
            hosts = self.headers.get_all("Host") or []
            origins = self.headers.get_all("Origin") or []
            if len(hosts) == 1 and hosts[0] in names and {*origins} <= {f"http://{hosts[0]}"}:
                return True
            self._refuse(HTTPStatus.FORBIDDEN, "This server answers only its own page.")
            return False

        def _is_at(self, path: str) -> bool:
            if self.path == path:
                return True
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing at this address.")
            return False

        def _refuse(self, status: HTTPStatus, sentence: str) -> None:
            self._send_json(status, {"error": sentence})

        def _send_json(self, status: HTTPStatus, value: dict[str, Any]) -> None:
            self._send(status, json.dumps(value).encode(), "application/json")

        def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
            self.close_connection = True
            self.send_response(status)
            for name, value in {**HEADERS, "Content-Type": kind}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing: the request is untrusted text."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Print nothing: a client that disconnects is not an error."""

    try:
        return Server((LOOPBACK, port), Handler)
    except OSError as error:
        raise UserError(
            f"Port {port} of {LOOPBACK} cannot be served: {error.strerror}. Use another --port, "
            "or omit it for any free one."
        ) from None
