"""The options by which a server computes prompts for another, or has them computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli import serve
from penstock.cli.main import main
from penstock.cli.parser import Parser
from penstock.cli.serve_roles import role
from penstock.handover_config import DecodeRole, PrefillRole
from penstock.peers.address import Address


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("  a secret of some length\n")
    path.chmod(0o600)
    return path


def of(*words: str) -> object:
    parser = Parser("penstock serve", "")
    serve.add_arguments(parser)
    return role(parser.parse(list(words)))


def test_roles(key: Path) -> None:
    assert of() is None
    assert of("--role", "prefill", "--handover-listen", "127.0.0.1:0") == PrefillRole(
        listen=Address("127.0.0.1", 0)
    )
    with_key = ["--handover-key-file", str(key)]
    assert of("--role", "prefill", "--handover-listen", "[::]:81", *with_key) == PrefillRole(
        listen=Address("::", 81), key=b"a secret of some length"
    )
    peers = ["--role", "decode", "--prefill", "localhost:81,[::1]:82"]
    addresses = (Address("localhost", 81), Address("::1", 82))
    assert of(*peers) == DecodeRole(prefill=addresses)
    options = ["--handover-least-tokens", "64", "--handover-max-wait", "2", "--handover-timeout"]
    assert of(*peers, *options, "3", "--handover-any-kernels") == DecodeRole(
        prefill=addresses, least_tokens=64, max_wait_s=2.0, timeout_s=3.0, any_kernels=True
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--role", "prefill"], "needs --handover-listen HOST:PORT"),
        (["--role", "decode"], "needs --prefill HOST:PORT"),
        (["--prefill", "127.0.0.1:81"], "argument --prefill: it needs --role decode"),
        (["--handover-listen", "127.0.0.1:81"], "it needs --role prefill"),
        (["--handover-any-kernels"], "it needs --role decode"),
        (["--handover-key-file", "x"], "it needs --role prefill or decode"),
        (["--role", "decode", "--prefill", "nowhere"], "not HOST:PORT: 'nowhere'"),
        (["--role", "decode", "--prefill", "a:0"], "not HOST:PORT"),
        (["--role", "decode", "--prefill", "a:65536"], "not HOST:PORT"),
        (["--role", "decode", "--prefill", ":81"], "not HOST:PORT"),
        (["--role", "decode", "--prefill", "127.0.0.1:81,127.0.0.1:81"], "twice"),
        (["--role", "decode", "--prefill", "10.0.0.1:81"], "both ends need the same secret"),
        (["--role", "prefill", "--handover-listen", "0.0.0.0:81"], "both ends need the same"),
        (["--role", "decode", "--prefill", "::1:81"], "not HOST:PORT"),
        (["--role", "both", "--handover-timeout", "3"], "it needs --role decode"),
        (["--role", "decode", "--handover-timeout", "0"], "above 0"),
        (["--role", "neither"], "invalid choice"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    assert message in capsys.readouterr().err
