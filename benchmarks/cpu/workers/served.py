"""An engine behind its own HTTP server, asked by concurrent clients over OpenAI's API.

The clients are the same for every engine: threads with a connection each that stream
``/v1/completions`` of token ids and note when each event comes. Standard library alone.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import socket
import subprocess
import threading
import time
from typing import Any, Protocol

from comparison.protocol import Load, Request
from workers.loop import TokenTimes

HOST = "127.0.0.1"
START_SECONDS, REPLY_SECONDS = 900.0, 900.0


class Server(Protocol):
    """How to start one engine's server and what its requests need beside the common fields."""

    def command(self, options: Load, port: int) -> list[str]: ...

    def extra_fields(self) -> dict[str, Any]: ...

    def isa(self) -> str: ...


class Served:
    """The engine of a worker that stands before ``server``."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.process: subprocess.Popen[bytes] | None = None

    def load(self, options: Load) -> dict[str, str]:
        self.port = free_port()
        command = self.server.command(options, self.port)
        self.process = subprocess.Popen(command)
        deadline = time.monotonic() + START_SECONDS
        while not self.healthy():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with code {self.process.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server was not ready in {START_SECONDS:.0f} s")
            time.sleep(0.2)
        self.model = options.model
        # Where things lie on this machine is nobody else's matter.
        return {
            "isa": self.server.isa(),
            "command": " ".join(os.path.basename(a) if os.path.isabs(a) else a for a in command),
        }

    def run(self, requests: list[Request], clients: int | None, times: TokenTimes) -> None:
        if clients is None:
            raise RuntimeError("a server needs to know the number of clients")
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for i in range(len(requests)):
            waiting.put(i)
        errors: list[Exception] = []

        def client() -> None:
            connection = http.client.HTTPConnection(HOST, self.port, timeout=REPLY_SECONDS)
            try:
                while not errors:
                    i = waiting.get_nowait()
                    self.complete(connection, requests[i], i, times)
            except queue.Empty:
                pass
            except Exception as error:
                errors.append(error)
            finally:
                connection.close()

        threads = [threading.Thread(target=client) for _ in range(clients)]
        times.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def complete(
        self,
        connection: http.client.HTTPConnection,
        request: Request,
        index: int,
        times: TokenTimes,
    ) -> None:
        """Stream one completion. A server may send several tokens in one event."""
        body = {
            "model": self.model,
            "prompt": request.prompt,
            "max_tokens": request.output,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.server.extra_fields(),
        }
        response = post(connection, "/v1/completions", json.dumps(body))
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read()[:300]!r}")
        events, tokens = 0, None
        while line := response.readline():
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                response.read()
                break
            event = json.loads(data)
            if event.get("error"):
                raise RuntimeError(f"the server says {event['error']}")
            if any(choice.get("text") for choice in event.get("choices", ())):
                events += 1
                times.add(index)
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
        if tokens is None:
            raise RuntimeError("the server did not say how many tokens it generated")
        times.add(index, tokens - events)  # those that came within another's event

    def healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def body(self) -> dict[str, Any]:
        return self.server.extra_fields()

    def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()


def post(connection: http.client.HTTPConnection, path: str, body: str) -> http.client.HTTPResponse:
    """Send on a connection that may have been used before.

    A server may close one between two requests without saying so; then nothing was answered, and
    the request goes out again on a new one.
    """
    headers = {"Content-Type": "application/json"}
    used = connection.sock is not None
    try:
        connection.request("POST", path, body, headers)
        return connection.getresponse()
    except ConnectionError:
        if not used:
            raise
    connection.close()
    connection.request("POST", path, body, headers)
    return connection.getresponse()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
