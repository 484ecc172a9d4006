"""``penstock pull``, ``list`` and ``rm``, with a hub of this machine; ``ps`` asks a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.waiting import PATIENCE_S

from penstock.cli.main import main
from penstock.cli.quantity import age, size

COMMIT = "0123456789" * 4
WEIGHTS = bytes(range(256)) * 4096
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS}
BREAKS_AT = 400_000


class Hub(BaseHTTPRequestHandler):
    """The hub, with one model; its weights break off as often as ``server.breaks`` says."""

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            files = [
                {"type": "file", "path": name, "size": len(data), "oid": COMMIT}
                for name, data in FILES.items()
            ]
            self._say(json.dumps(files).encode())
            return
        if self.path.startswith("/api/models/"):
            siblings = [{"rfilename": name} for name in FILES]
            about = {"id": "own/tiny", "sha": COMMIT, "siblings": siblings}
            self._say(json.dumps(about).encode())
            return
        name = self.path.rpartition("/")[2]
        if name not in FILES:
            self.send_error(404)
            return
        data, begin = FILES[name], 0
        asked = self.headers.get("Range")
        if asked is not None:
            begin = int(asked.removeprefix("bytes=").partition("-")[0])
            self.server.begun.append((name, begin))  # type: ignore[attr-defined]
        self._head(name, len(data) - begin, 206 if begin else 200)
        if self.command == "HEAD":
            return
        if name == "model.safetensors" and self.server.breaks:  # type: ignore[attr-defined]
            self.wfile.write(data[begin:BREAKS_AT])
            self.close_connection = True
            return
        self.wfile.write(data[begin:])

    do_HEAD = do_GET

    def _say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _head(self, name: str, length: int, status: int) -> None:
        self.send_response(status)
        self.send_header("x-repo-commit", COMMIT)
        self.send_header("etag", f'"{name}"')
        self.send_header("content-length", str(length))
        self.send_header("accept-ranges", "bytes")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.breaks = True  # type: ignore[attr-defined]
    server.begun = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_download_that_breaks_off_goes_on(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "HF_HOME": str(tmp_path),
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    environment.pop("HF_HUB_OFFLINE", None)

    def penstock(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "penstock", *words]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        return done.returncode, done.stdout + done.stderr

    assert penstock("list")[1].startswith("the local store is empty")
    code, said = penstock("pull", "own/tiny")
    assert code == 1, said
    assert "model.safetensors of own/tiny broke off after 400,000 of 1,048,576 bytes" in said
    assert "a download broke off" in penstock("list")[1], said
    hub.breaks = False  # type: ignore[attr-defined]
    code, said = penstock("pull", "own/tiny")
    assert code == 0, said
    assert ("model.safetensors", BREAKS_AT) in hub.begun  # type: ignore[attr-defined]
    folder = Path(said.rpartition(" is at ")[2].strip())
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    (line,) = penstock("list", "--json")[1].splitlines()
    stored = json.loads(line)
    assert (stored["name"], stored["whole"], stored["revisions"]) == ("own/tiny", True, ["main"])
    assert penstock("rm", "own/tiny")[1] == "own/tiny: 1.05 MB are free\n"
    code, said = penstock("rm", "own/tiny")
    assert (code, "there is no model 'own/tiny' in the local store" in said) == (1, True)


def test_what_is_here_is_not_pulled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", str(tmp_path)]) == 2
    assert "is on this machine already" in capsys.readouterr().err
    assert main(["pull", "a/b", "c/d", "--revision", "v1"]) == 2
    assert "it is of one model" in capsys.readouterr().err


class Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        loading = {"value": "loading", "state": "loading", "phase": "weights (40%)"}
        loaded = {"value": "loaded", "memory_bytes": 2_500_000_000, "open": 2, "waiting": 1}
        models = [
            {"id": "one", "status": loaded},
            {"id": "other", "status": loading},
            {"id": "third", "status": {"value": "unloaded"}},
            {"id": "of one's own"},
        ]
        short = [{"id": "st"}]
        found = {"/v1/models": {"data": models}, "/short/v1/models": {"data": short}}
        body = json.dumps(found.get(self.path, [])).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_ps(capsys: pytest.CaptureFixture[str]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"127.0.0.1:{server.server_port}"
        assert main(["ps", url]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "MODEL         STATE        MEMORY  REQUESTS  USED",
            "one           loaded       2.5 GB         3  now",
            "other         loading                        weights (40%)",
            "of one's own  loaded",
        ]
        assert main(["ps", url, "--all"]) == 0
        assert "third" in capsys.readouterr().out
        assert main(["ps", f"{url}/short"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "MODEL  STATE        MEMORY  REQUESTS  USED",
            "st     loaded",
        ]
        assert main(["ps", f"{url}/else"]) == 1
        assert "answers otherwise" in capsys.readouterr().err
    finally:
        server.shutdown()
        server.server_close()


def test_quantities() -> None:
    assert [size(each) for each in (5, 1500, 2_340_000, 7 * 10**9)] == [
        *("5 B", "1.5 kB", "2.34 MB", "7 GB"),
    ]
    assert [age(each) for each in (3, 60, 7300, 86400 * 3)] == [
        *("just now", "1 minute ago", "2 hours ago", "3 days ago"),
    ]
