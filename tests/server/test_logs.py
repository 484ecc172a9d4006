"""The log: its lines, what is never in them, and writers that fail."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from support.http_client import running
from support.streams import bystanders
from support.waiting import PATIENCE_S, until

from penstock.server.logs import QUEUE_LINES, LogOptions, logging_to
from penstock.server.repeats import A_SECOND, MAX_LINES, Line, Repeats

SECRET = "xyzzy-plugh"
BODY = {"model": "fake", "prompt": SECRET, "max_tokens": 5}


def entries(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_request_leaves_a_line_without_its_prompt(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with (
        log.open("wb") as stderr,
        running(tokenizer_folder, 1, stderr, log_format="json", api_keys="key") as server,
    ):
        headers = {"x-request-id": "mine", "authorization": "Bearer key"}
        answer = server.http.post("/v1/completions", json=BODY, headers=headers)
        assert answer.status_code == 200
        server.http.post("/v1/completions", json=BODY)
        server.http.get("/ready")
        server.http.get("/no%0d%0awhere", headers=headers)
        server.http.get("/" + "x" * 50_000, headers=headers)
        until(lambda: log.read_text().count("penstock.access") == 4, PATIENCE_S, "logged")
    lines = [entry for entry in entries(log) if entry["logger"] == "penstock.access"]
    assert [line["status"] for line in lines] == [200, 401, 404, 404]
    served = lines[0]
    assert served["request_id"] == "mine"
    assert served["path"] == "/v1/completions"
    assert served["prompt_tokens"] == len(SECRET)
    assert served["output_tokens"] == 5
    assert served["finish_length"] == 1
    assert 0 < float(str(served["first_token_s"])) <= float(str(served["seconds"]))
    assert len(str(served["key"])) == 8
    assert len(str(lines[3]["path"])) < 300
    assert "(50001 characters)" in str(lines[3]["message"])
    assert SECRET not in log.read_text()
    assert "Bearer" not in log.read_text()


def test_prompts_are_logged_when_asked(tokenizer_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("wb") as stderr,
        running(tokenizer_folder, 1, stderr, log_format="json", log_prompts=True) as server,
    ):
        text = server.post("/v1/completions", BODY).json()["choices"][0]["text"]
        until(lambda: "penstock.access" in log.read_text(), PATIENCE_S, "logged")
    (line,) = [entry for entry in entries(log) if entry["logger"] == "penstock.access"]
    (generation,) = line["generations"]  # type: ignore[misc]
    assert generation["prompt"] == SECRET
    assert generation["outputs"] == [text]


def test_a_full_disk_costs_lines_and_nothing_else(tokenizer_folder: Path) -> None:
    with (
        open("/dev/full", "wb") as full,
        running(tokenizer_folder, 1, full) as server,
    ):
        with bystanders(server):
            for _ in range(20):
                server.http.get("/v1/models")
        assert server.metric("log_lines_dropped_total") >= 20
        assert server.ready()


def test_a_pipe_that_nobody_reads_blocks_nothing() -> None:
    reading, writing = os.pipe()
    try:
        with logging_to(LogOptions(fd=writing)) as log:
            logger = logging.getLogger("penstock.test")
            for i in range(QUEUE_LINES + 2000):
                logger.info("line %d %s", i, "x" * 100)
            assert log.dropped >= 1000
            os.read(reading, 1 << 20)  # lets the thread end
            os.set_blocking(writing, False)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_line_is_one_line_whatever_it_says(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file, logging_to(LogOptions(fd=file.fileno())):
        logging.getLogger("penstock.test").warning(
            "a\nb\x1b[2J\x7f", extra={"fields": {"path": "x y\r\nz", "name": "é", "n": 1}}
        )
        logging.getLogger("penstock.test").debug("not told")
        logging.getLogger("other").info("not told")
        logging.getLogger("penstock.test").info("%d", "no number")
    lines = path.read_bytes().split(b"\n")
    assert len(lines) == 3
    assert lines[0].endswith(b"WARNING penstock.test: a\\nb\\u001b[2J\\u007f name=\xc3\xa9 n=1")
    assert b"a log line could not be made" in lines[1]


def test_equal_lines_are_reported_a_few_times_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file, logging_to(LogOptions(fd=file.fileno())):
        for _ in range(50_000):
            logging.getLogger("penstock.test").error("the same %s", "line")
        until(lambda: "left out" in path.read_text(), PATIENCE_S, "told without another line")
        logging.getLogger("penstock.test").error("another")
    lines = path.read_text().splitlines()
    reported = [line for line in lines if line.endswith("the same line")]
    summed = [line for line in lines if "left out" in line]
    left_out = [int(line.rpartition("left out ")[2].split()[0]) for line in summed]
    assert all("ERROR penstock.test: the same line (left out" in line for line in summed)
    assert len(reported) + sum(left_out) == 50_000
    assert len(reported) <= A_SECOND * (len(summed) + 1)
    assert any(line.endswith("another") for line in lines)


def test_lines_of_requests_are_never_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file, logging_to(LogOptions(fd=file.fileno())):
        for _ in range(100):
            logging.getLogger("penstock.access").info("GET / 200", extra={"fields": {"id": "a"}})
    assert path.read_text().count("GET / 200") == 100


def test_repeats_are_counted_by_the_second() -> None:
    now = 100.0
    repeats = Repeats(lambda: now)
    line, other = Line("a", 40, "x"), Line("a", 40, "x", "ValueError()")
    assert [repeats.admits(line) for _ in range(A_SECOND + 3)] == [True] * A_SECOND + [False] * 3
    assert repeats.admits(other)
    assert list(repeats.over()) == []
    assert repeats.waiting
    now = 101.0
    assert list(repeats.over()) == [(line, 3)]
    assert not repeats.waiting
    assert list(repeats.over()) == []
    assert repeats.admits(line)
    for i in range(2 * MAX_LINES):
        assert repeats.admits(Line("a", 40, str(i)))
    assert list(repeats.over(at_once=True)) == []
