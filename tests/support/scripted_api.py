"""A server that answers chats as a test says, with what servers in the field send."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class ScriptedApi:
    """What the server answers, and what it was asked."""

    events: list[str] = field(default_factory=list)
    """Data of the events of an answer."""
    status: int = 200
    body: bytes = b""
    """The body, where the status is an error's."""
    headers: dict[str, str] = field(default_factory=dict)
    models_status: int = 200
    models_body: bytes | None = None
    """What is sent in place of the list of models."""
    cut: bool = False
    """Whether that comes in chunks whose last is missing."""
    models: tuple[str, ...] = ("small",)
    chat_template_kwargs: tuple[str, ...] | None = None
    """What it says of their chat templates; None says nothing, as most servers do."""
    sampling_defaults: dict[str, Any] | None = None
    """What it says that their makers recommend; None says nothing."""
    hold: threading.Event | None = None
    """If set, the answer stays open behind its events until this is."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""


def delta(**fields: Any) -> str:
    """An event's data with this delta."""
    return json.dumps({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def end(reason: str = "stop", **usage: int) -> list[str]:
    """The events that end an answer."""
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    counted: dict[str, Any] = {"choices": [], "usage": usage or None}
    return [json.dumps(last), json.dumps(counted), "[DONE]"]


@contextmanager
def scripted_api() -> Iterator[ScriptedApi]:
    api = ScriptedApi()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            api.keys.append(self.headers["Authorization"])
            if api.models_status != 200:
                self._reply(api.models_status, b"")
                return
            if api.models_body is not None:
                if not api.cut:
                    self._reply(200, api.models_body)
                    return
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(api.models_body), api.models_body))
                return
            more: dict[str, Any] = (
                {"chat_template_kwargs": api.chat_template_kwargs}
                if api.chat_template_kwargs
                else {}
            )
            if api.sampling_defaults is not None:
                more["sampling_defaults"] = api.sampling_defaults
            entries = [{"id": name, **more} for name in api.models]
            body = json.dumps({"object": "list", "data": entries})
            self._reply(200, body.encode())

        def do_POST(self) -> None:
            api.keys.append(self.headers["Authorization"])
            body = self.rfile.read(int(self.headers["Content-Length"]))
            api.asked.append(json.loads(body))
            if api.status != 200:
                self._reply(api.status, api.body)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for event in api.events:
                self.wfile.write(f"data: {event}\n\n".encode())
            if api.hold is not None:
                api.hold.wait(60)

        def _reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            for name, value in api.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        api.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield api
        finally:
            if api.hold is not None:
                api.hold.set()
            server.shutdown()
            thread.join()
