"""Servers behind one name, such as the pods of a headless service in Kubernetes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import ConfigError
from penstock.router.members import Members
from penstock.router.replica import Member
from penstock.router.target import Target

_log = logging.getLogger("penstock.router")


class Resolver:
    """Makes each address that a server's name has a member, again and again.

    Where a name cannot be resolved its last addresses stay: a name server that is away has ended no
    server, and those that have ended are found by their probes.
    """

    def __init__(self, named: Sequence[Member], members: Members, every_s: float) -> None:
        """Raises ConfigError for what is no URL of a server, and for HTTPS, whose certificates are
        for names."""
        self._named = [(member, Target.of(member.url)) for member in named]
        for member, target in self._named:
            if target.tls:
                raise ConfigError(
                    f"{member.url}: --resolve asks servers by their addresses, and certificates "
                    "are for names; write http://"
                )
        self._members = members
        self._every_s = every_s
        self._found: dict[Member, list[Member]] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.look()
            except Exception:  # a defect must not end the looks
                _log.exception("looking up the servers' names failed")

    async def look(self) -> None:
        """Resolve all names once."""
        loop = asyncio.get_running_loop()
        for member, target in self._named:
            try:
                infos = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            except OSError as error:
                self._members.unresolved(member.url, f"its name: {error.strerror or error}")
                continue
            self._members.unresolved(member.url, "")
            hosts = _addresses(infos)
            self._found[member] = [replace(member, url=target.at(host)) for host in hosts]
        found = [each for members in self._found.values() for each in members]
        self._members.set(dict.fromkeys(found))  # two names may have the same address


def _addresses(infos: Sequence[tuple[Any, ...]]) -> list[str]:
    """The addresses in what ``getaddrinfo`` tells: of both kinds those of IPv4 alone, since a pod
    of a cluster with both has one of each, and would be two servers."""
    of_4 = [info for info in infos if info[0] == socket.AF_INET]
    return sorted({str(address[0]) for *_, address in of_4 or infos})
