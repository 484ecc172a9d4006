"""Strangers are kept out of a pipeline, and both ends are told why."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.engine.stages.channel import Channel
from penstock.engine.stages.handshake import (
    SECRET_VARIABLE,
    Handshake,
    Hello,
    Proof,
    as_engine,
    as_stage,
    is_own_address,
    read_secret,
)
from penstock.engine.stages.wire import StageResult
from penstock.errors import ConfigError, PenstockError
from penstock.processes.frames import WireError

SECRET, OTHER = b"0123456789abcdef", b"fedcba9876543210"


def greet(engine: bytes | None, stage: bytes | None) -> tuple[Any, Any]:
    """What comes of a handshake at both ends: a channel, or an error."""
    ours, theirs = socket.socketpair()
    got: list[Any] = []

    def other() -> None:
        try:
            got.append(as_stage(theirs, stage))
        except PenstockError as error:
            got.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        mine: Any = as_engine(ours, engine)
    except PenstockError as error:
        mine = error
    thread.join(30)
    return mine, got[0]


@pytest.mark.parametrize("secret", [None, SECRET])
def test_both_know_the_same(secret: bytes | None) -> None:
    engine, stage = greet(secret, secret)
    message = StageResult(1, [b"x"])
    stage.send(message)
    assert engine.receive() == message


@pytest.mark.parametrize(
    ("engine", "stage", "message"),
    [
        (SECRET, OTHER, "the engine has another secret than the stage"),
        (SECRET, None, "the engine has a secret and the stage has none; give both the same"),
        (None, SECRET, "the stage has a secret and the engine has none; give both the same"),
    ],
)
def test_they_do_not(engine: bytes | None, stage: bytes | None, message: str) -> None:
    for error in greet(engine, stage):
        assert isinstance(error, ConfigError)
        assert message in str(error)


def pretending(secret: bytes) -> Channel[Handshake]:
    """A stage's other end, which has greeted it without knowing the secret."""
    ours, theirs = socket.socketpair()

    def stage() -> None:
        with pytest.raises(PenstockError):
            as_stage(theirs, secret)
        theirs.close()

    threading.Thread(target=stage).start()
    ours.settimeout(10)
    channel: Channel[Handshake] = Channel(ours, "engine", Handshake)
    channel.send(Hello(bytes(32), True))
    assert isinstance(channel.receive(), Hello)
    return channel


def test_a_proof_cannot_be_guessed() -> None:
    channel = pretending(SECRET)
    channel.send(Proof(bytes(32)))
    answer: Any = channel.receive()
    assert "another secret" in answer.message
    assert channel.receive() is None


def test_messages_out_of_turn_and_garbage() -> None:
    channel = pretending(SECRET)
    channel.send(Hello(bytes(32), True))
    assert channel.receive() is None
    for data in (b"GET / HTTP/1.1\r\n\r\n" * 3, b"\0" * 64, b""):
        ours, theirs = socket.socketpair()
        theirs.sendall(data)
        theirs.close()
        with pytest.raises(WireError):
            as_stage(ours, SECRET)


def test_a_stage_that_lets_everybody_in_does_not_get_an_engine_with_a_secret() -> None:
    """It says that it has one."""
    ours, theirs = socket.socketpair()

    def impostor() -> None:
        channel: Channel[Handshake] = Channel(theirs, "stage", Handshake)
        channel.receive()
        channel.send(Hello(bytes(32), True))
        channel.receive()
        channel.send(Proof(bytes(32)))

    threading.Thread(target=impostor).start()
    with pytest.raises(ConfigError, match="does not know the secret"):
        as_engine(ours, SECRET)


def test_where_the_secret_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    assert read_secret(None) is None
    monkeypatch.setenv(SECRET_VARIABLE, SECRET.decode())
    assert read_secret(None) == SECRET
    file = tmp_path / "secret"
    file.write_bytes(OTHER + b"\n")
    file.chmod(0o600)
    assert read_secret(str(file)) == OTHER
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"others may read .*; chmod 600 it"):
        read_secret(str(file))
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        read_secret(str(tmp_path / "none"))
    monkeypatch.setenv(SECRET_VARIABLE, "short")
    with pytest.raises(ConfigError, match="has 5 bytes of secret, and 16 are needed"):
        read_secret(None)


def test_own_addresses() -> None:
    assert all(map(is_own_address, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_own_address, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))
