"""Where secrets come from, and who needs one."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.peers.address import Address
from penstock.peers.secret import SecretOption

OPTION = SecretOption("--secret-file", "SOME_SECRET")
SECRET, OTHER = b"0123456789abcdef", b"fedcba9876543210"


def test_where_the_secret_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_SECRET", raising=False)
    assert OPTION.read(None) == b""
    monkeypatch.setenv("SOME_SECRET", SECRET.decode())
    assert OPTION.read(None) == SECRET
    file = tmp_path / "secret"
    file.write_bytes(b" " + OTHER + b"\n")
    file.chmod(0o600)
    assert OPTION.read(file) == OTHER
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"others may read .*; chmod 600 it"):
        OPTION.read(file)
    with pytest.raises(ConfigError, match=r"--secret-file: cannot read .*: No such file"):
        OPTION.read(str(tmp_path / "none"))
    file.chmod(0o600)
    file.write_bytes(b"\n")
    with pytest.raises(ConfigError, match="secret has 0 bytes of secret, and 16 are needed; make"):
        OPTION.read(file)
    monkeypatch.setenv("SOME_SECRET", "short")
    with pytest.raises(ConfigError, match="SOME_SECRET has 5 bytes of secret, and 16 are needed"):
        OPTION.read(None)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_alone_needs_none(host: str) -> None:
    OPTION.check(b"", [Address(host, 1)], "--listen")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_all_else_does(host: str) -> None:
    OPTION.check(SECRET, [Address(host, 1)], "--listen")
    message = r"^--listen .*:1 is not on this .* give it by --secret-file or SOME_SECRET$"
    with pytest.raises(ConfigError, match=message):
        OPTION.check(b"", [Address("::1", 1), Address(host, 1)], "--listen")
