"""``penstock deploy``: what it refuses before Ray is started, and what it says."""

from __future__ import annotations

import importlib.util
import socket
import sys
from pathlib import Path

import pytest

from penstock.cli import deploy
from penstock.cli.main import main
from penstock.deploy.status import DeploymentStatus


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration; Ray's files would be beside it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "fleet.toml"
    path.write_text("")
    return path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name a CONFIG, a TOML file; docs/deploy.md has one to begin with"),
        (["--manifests", "kuberay"], "name a CONFIG"),
        (["no.toml"], "no.toml"),
        (["--status", "--down"], "not allowed with argument --status"),
        (["--manifests", "helm"], "invalid choice: 'helm'"),
    ],
)
def test_what_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", *words]) in (1, 2)
    assert told in capsys.readouterr().err


def test_without_ray_it_says_how_to_get_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "ray" else find(name)
    )
    for words in ([str(file)], ["--status"], ["--down"]):
        assert main(["deploy", *words]) == 2
        assert capsys.readouterr().err == (
            "penstock: error: 'penstock deploy' needs Ray: pip install 'penstock[ray]'\n"
        )
    # Which manifests do not.
    file.write_text("[kubernetes]\nimage = 'a'\n")
    assert main(["deploy", str(file), "--manifests", "kuberay"]) == 0


def test_without_a_part_of_ray_it_says_which(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "penstock.deploy.cluster", raising=False)
    assert main(["deploy", "--status", "--address", "127.0.0.1:6379"]) == 2
    said = capsys.readouterr().err
    assert "needs Ray Serve, 2.60 or later: pip install 'penstock[ray]' (" in said
    assert "ray" in said.partition("(")[2]


def test_a_port_in_use_is_found_before_ray_is_started(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file.write_text(f"[routing]\nport = {port}\n")
        assert main(["deploy", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"penstock: error: routing.port: port {port} on 127.0.0.1 is in use; write another one\n"
    )
    file.write_text("[routing]\nhost = 'no.such.host.invalid'\n")
    assert main(["deploy", str(file)]) == 2
    assert "routing.host: 'no.such.host.invalid' is no address" in capsys.readouterr().err
    assert not (file.parent / "state").exists()


@pytest.mark.parametrize("address", ["10.0.0.1", "head:port", "head:99999"])
def test_an_address_of_another_form(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "--status", "--address", address]) == 2
    assert f"--address {address}: write HOST:PORT" in capsys.readouterr().err


def test_a_state_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    def status(wanted: int, state: str, error: str = "") -> DeploymentStatus:
        return DeploymentStatus(
            name="a", state=state, error=error, wanted=wanted, replicas=[], routers=[]
        )

    tell = deploy.Teller()
    for each in (status(1, "DEPLOYING"), status(1, "DEPLOYING"), status(2, "DEPLOYING", "why")):
        tell(each)
    assert capsys.readouterr().err == (
        "a: deploying, 0 of 1 replicas\na: deploying, 0 of 2 replicas: why\n"
    )
