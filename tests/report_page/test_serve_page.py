"""The server of the report: for its own page on this machine, and nobody else."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from selfsight import report_page
from selfsight.errors import UserError
from selfsight.report_page import serve_page
from selfsight.report_page.serve_page import build_server
from tests.report_page.folders import HOSTILE

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACw="


def answer(data: bytes) -> dict[str, Any]:
    if data == b"broken":
        raise ValueError("it is <b>not</b> an image")
    if data == b"bug":
        raise RuntimeError("out of memory")
    neighbor = {"name": HOSTILE[0], "label": HOSTILE[1], "similarity": 0.5, "image": PIXEL}
    return {"images": 3, "query": PIXEL, "neighbors": [neighbor], "bytes": len(data)}


@pytest.fixture
def server(make_run) -> Iterator[Any]:
    built = build_server(report_page.build(make_run(), served=True), answer, port=0, max_bytes=1000)
    thread = threading.Thread(target=built.serve_forever, args=(0.01,))
    thread.start()
    yield built
    built.shutdown()
    thread.join()
    built.server_close()


def ask(server, method="GET", path="/", body=None, headers=None, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    headers = {"Host": host or f"127.0.0.1:{server.server_port}"} | (headers or {})
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    status, text = response.status, response.read().decode()
    connection.close()
    return status, text


def test_only_this_machine_can_connect(server):
    assert server.server_address[0] == "127.0.0.1"
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    for address in {a for a in others if not a.startswith("127.") and ":" not in a}:
        with pytest.raises(OSError), socket.create_connection((address, server.server_port), 1):
            pass


def test_the_page_and_its_answer_are_served(server):
    status, page = ask(server)
    assert status == 200 and 'id="query"' in page and "connect-src 'self'" in page
    status, found = ask(server, "POST", "/query", b"x" * 999)
    assert status == 200 and json.loads(found)["bytes"] == 999
    assert ask(server, host=f"localhost:{server.server_port}")[0] == 200


def test_another_name_for_this_address_is_refused(server):
    """DNS rebinding: a page of another site leads its own name to 127.0.0.1."""
    port = server.server_port
    for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1:{port + 1}", "127.0.0.1"):
        assert ask(server, host=host)[0] == 403
        assert ask(server, "POST", "/query", b"x", host=host)[0] == 403
    for origin in ("http://evil.example", "null", f"http://localhost:{port}"):
        status, said = ask(server, "POST", "/query", b"x", {"Origin": origin})
        assert status == 403 and "only its own page" in said
    own = {"Origin": f"http://127.0.0.1:{port}"}
    assert ask(server, "POST", "/query", b"x", own)[0] == 200


def test_no_file_is_served(server):
    for path in ("/recipe.json", "/../recipe.json", "//etc/passwd", "/%2e%2e/", "/?x", "/query"):
        assert ask(server, path=path)[0] == 404
    assert ask(server, "POST", "/", b"x")[0] == 404


def test_what_is_no_image_or_too_large_gets_a_sentence_and_the_server_goes_on(server):
    status, said = ask(server, "POST", "/query", b"broken")
    assert status == 422 and json.loads(said)["error"].endswith("<b>not</b> an image.")
    assert ask(server, "POST", "/query", b"bug")[0] == 500
    for length in ("1001", "9" * 20, "-1", "x", ""):
        with socket.create_connection(("127.0.0.1", server.server_port), 10) as opened:
            lines = [
                "POST /query HTTP/1.1",
                f"Host: 127.0.0.1:{server.server_port}",
                f"Content-Length: {length}",
            ]
            opened.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            # It answers before a byte of the image has come.
            assert opened.recv(100).split()[1] in (b"411", b"413"), length
    assert ask(server, "POST", "/query", b"x")[0] == 200


def test_images_that_come_byte_by_byte_keep_no_other_waiting(server, monkeypatch):
    monkeypatch.setattr(serve_page, "UPLOAD_SECONDS", 0.2)
    head = f"POST /query HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(2 * serve_page.AT_ONCE):
            slow = socket.create_connection(("127.0.0.1", server.server_port), 10)
            stack.enter_context(slow).sendall(f"{head}Content-Length: 99\r\n\r\nx".encode())
            drip = threading.Thread(target=send_slowly, args=(slow,), daemon=True)
            drip.start()
        assert ask(server, "POST", "/query", b"x" * 999)[0] == 200


def send_slowly(connection):
    with contextlib.suppress(OSError):
        for _ in range(98):
            time.sleep(0.1)
            connection.sendall(b"x")


def test_a_port_in_use_gets_a_sentence(server):
    with pytest.raises(UserError, match=f"Port {server.server_port} .* Use another --port"):
        build_server("", answer, port=server.server_port, max_bytes=1)


def test_the_page_on_disk_asks_no_server(make_run):
    page = report_page.write(make_run()).read_text("utf-8")
    assert "connect-src" not in page and "/query" not in page and 'id="query"' not in page


@pytest.mark.browser
@pytest.mark.slow
def test_an_image_is_dropped_on_the_page_in_a_browser(server, browser, tmp_path):
    (tmp_path / "<i>mine.png").write_bytes(b"x")
    (tmp_path / "broken.png").write_bytes(b"broken")
    tab = browser.new_page()
    complaints: list[str] = []
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(f"http://127.0.0.1:{server.server_port}/")
    tab.set_input_files("#query-file", tmp_path / "<i>mine.png")
    tab.locator(".answer .row").wait_for()
    captions = tab.locator(".answer figcaption").all_inner_texts()
    assert captions == ["<i>mine.png", "0.50", HOSTILE[1], HOSTILE[0].split("/")[-1]]
    tab.set_input_files("#query-file", tmp_path / "broken.png")
    tab.locator(".answer .missing").wait_for()
    assert "it is <b>not</b> an image" in tab.locator(".answer").inner_text()
    assert tab.evaluate("window.hacked") is None and complaints == []
    tab.close()
