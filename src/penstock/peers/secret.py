"""The secret that two ends have, as users give it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError
from penstock.peers.address import Address

LEAST_BYTES: Final = 16


@dataclass(frozen=True)
class SecretOption:
    """Where a secret is given: in a file that an option names, or in an environment variable."""

    option: str
    """As it is written on the command line."""
    variable: str

    def __str__(self) -> str:
        return f"{self.option} or {self.variable}"

    def read(self, file: str | Path | None) -> bytes:
        """Return the secret of the file, or else of the environment, without white space around it;
        empty if there is neither. Raises ConfigError."""
        if file is None:
            where, secret = self.variable, os.environ.get(self.variable, "").encode().strip()
        else:
            where, secret = f"{self.option} {file}", _content(Path(file), self.option)
        if len(secret) < LEAST_BYTES and (secret or file is not None):
            raise ConfigError(
                f"{where} has {len(secret)} bytes of secret, and {LEAST_BYTES} are needed; make "
                "one with: openssl rand -hex 32"
            )
        return secret

    def check(self, secret: bytes, addresses: Iterable[Address], option: str) -> None:
        """Raise ConfigError where one of the ``addresses``, given by ``option``, is not on this
        machine alone, and there is no secret."""
        for address in addresses:
            if not secret and not address.is_loopback:
                raise ConfigError(
                    f"{option} {address} is not on this machine alone, so that both ends need the "
                    f"same secret; give it by {self}"
                )


def _content(file: Path, option: str) -> bytes:
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"others may read {file}, which has a secret; chmod 600 it")
        return file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {file}: {error.strerror}") from error
