"""pip, as bin/provision runs it: it installs what is pinned, and reads nothing else of the index."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from proving.harness import ROOT

pytestmark = pytest.mark.contract

INFO = "brine-1.dist-info"


def wheel() -> bytes:
    built = io.BytesIO()
    with zipfile.ZipFile(built, "w") as package:
        package.writestr("brine.py", "")
        package.writestr(f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: brine\nVersion: 1\n")
        package.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        package.writestr(f"{INFO}/RECORD", "")
    return built.getvalue()


def test_pip_reads_and_installs_only_what_is_pinned(tmp: Path) -> None:
    built = wheel()
    pin = hashlib.sha256(built).hexdigest()
    files = {"brine-1-py3-none-any.whl": pin, "brine-1-py2-none-any.whl": "0" * 64, "brine-2.tar.gz": "1" * 64}
    listed = [{"filename": name, "url": f"/{name}", "hashes": {"sha256": each}} for name, each in files.items()]
    page = json.dumps({"meta": {"api-version": "1.0"}, "name": "brine", "files": listed}).encode()

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            is_wheel = self.path.endswith(".whl")
            self.send_header("Content-Type", "x/wheel" if is_wheel else "application/vnd.pypi.simple.v1+json")
            self.end_headers()
            self.wfile.write(built if is_wheel else page)

        def log_message(self, *_: object) -> None:
            pass

    pins = tmp / "pinned"
    pins.write_text(f"brine==1 \\\n    --hash=sha256:{pin}\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as index:
        threading.Thread(target=index.serve_forever, daemon=True).start()
        options = ["--require-hashes", "--no-cache-dir", "-vv", "--index-url", f"http://127.0.0.1:{index.server_port}/"]
        command = [sys.executable, str(ROOT / "deploy/pip_of_pins.py"), "install", *options, "--target", f"{tmp}/into"]
        done = subprocess.run([*command, "-r", str(pins)], capture_output=True, text=True)
        index.shutdown()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp / "into/brine.py").exists()
    assert "py2-none-any" not in done.stdout and "brine-2" not in done.stdout
