"""The conformance suite on losses of other libraries: one command, and so one process, for each."""

import json
import subprocess
import sys
from pathlib import Path

from peer_methods import LOSSES

for name in LOSSES:
    words = ["conformance", "peer_methods:PeerConfig", "--method.loss", name, "--json"]
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "selfsight", *words],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,  # 1 if a check failed
    )
    results = json.loads(found.stdout[found.stdout.index(b"{") :])["checks"]  # after log lines
    passed = sum(result["outcome"] == "pass" for result in results)
    failed = [result["check"] for result in results if result["outcome"] == "fail"]
    print(f"{name:36} {passed} passed, {len(failed)} failed: {', '.join(failed) or 'none'}")
