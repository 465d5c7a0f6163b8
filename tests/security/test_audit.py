"""The audit of the dependencies fails if it finds something, and if it could audit nothing."""

import importlib.util
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VULNERABLE = {("pillow", "8.0.0"): ["GHSA-1", "GHSA-2"], ("torch", "1.0.0"): ["PYSEC-3"]}


@pytest.fixture(scope="module")
def audit():
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci/audit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def service():
    """A stand-in for osv.dev; `server.answer(queries)` gives the text of its answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.server.answer(queries).encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        server.answer = known
        server.address = f"http://127.0.0.1:{server.server_port}"
        yield server
        server.shutdown()
        thread.join()


def known(queries, vulnerable=VULNERABLE):
    ids = [vulnerable.get((q["package"]["name"], q["version"]), []) for q in queries]
    return json.dumps({"results": [{"vulns": [{"id": i} for i in some]} for some in ids]})


def run(audit, pins, address, tmp_path):
    (tmp_path / "pins.txt").write_text("\n".join(f"{n}=={v}" for n, v in pins.items()))
    audit.main(["--constraints", str(tmp_path / "pins.txt"), "--service", address])


def test_no_vulnerability_is_said_with_the_number_of_packages(audit, service, tmp_path, capsys):
    run(audit, {"Pillow": "13.0.0", "torch": "2.11.0"}, service.address, tmp_path)
    assert "2 packages, no known vulnerability" in capsys.readouterr().out


def test_a_vulnerable_version_fails_the_audit(audit, service, tmp_path, capsys):
    with pytest.raises(SystemExit, match="1 of 2 packages have known vulnerabilities"):
        run(audit, {"Torch": "1.0.0", "rich": "15.0.0"}, service.address, tmp_path)
    assert "torch 1.0.0: PYSEC-3" in capsys.readouterr().out


@pytest.mark.parametrize(
    "answer",
    [
        lambda queries: known(queries[1:]),
        lambda queries: known(queries, {}),  # it does not know what everybody knows
        lambda queries: "<html>Sign in to this network</html>",
        lambda queries: "{}",
        lambda queries: "[]",
    ],
    ids=["fewer", "ignorant", "portal", "empty", "list"],
)
def test_an_audit_without_an_answer_fails(audit, service, tmp_path, answer):
    service.answer = answer
    with pytest.raises(SystemExit, match="Nothing was audited"):
        run(audit, {"rich": "15.0.0"}, service.address, tmp_path)


def test_an_audit_of_nothing_fails(audit, service, tmp_path):
    with pytest.raises(SystemExit, match="no version to audit"):
        run(audit, {}, service.address, tmp_path)
    with pytest.raises(SystemExit, match=r"Nothing was audited.*refused"):
        run(audit, {"rich": "15.0.0"}, "http://127.0.0.1:1", tmp_path)


def test_the_page_of_licenses_lists_every_pinned_package(audit):
    """None may be GPL: selfsight is under the Apache License."""
    page = (ROOT / "docs/dependencies.md").read_text()
    rows = re.findall(r"^\| ([a-z0-9-]+) \| (.+?) \| (?:use|development) \|$", page, re.MULTILINE)
    assert {name for name, _ in rows} == set(audit.read_pins(ROOT / "constraints.txt"))
    assert not [row for row in rows if "GPL" in row[1] or row[1].startswith("not ")]
