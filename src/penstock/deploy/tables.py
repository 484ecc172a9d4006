"""The tables of a deployment's configuration, as structs: what each key means."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from penstock.routing.loads import LoadWeights
from penstock.service_level import Limit, parse_limit

Options = dict[str, Any]
"""Options of ``penstock serve`` by their names: texts, numbers, booleans, or lists of them."""
Share = Annotated[float, Meta(gt=0, le=1)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]

MEMORY: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(Ki|Mi|Gi|Ti)B?")
"""A size, such as ``8Gi``."""
MOST_MEMORY: Final = 1 << 49
"""Bytes. Ray counts ten-thousandths in 64 bits, and takes 1,000 Ti for less than nothing."""
_BYTES: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


class Replicas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many servers there are, and what each is given."""

    min: Annotated[int, Meta(ge=0, le=10_000)] = 1
    max: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """None: as many as ``min``, and never others."""
    cpus: Annotated[float, Meta(gt=0, le=10_000)] | None = None
    """CPUs that Ray keeps for each, and the threads that it has if ``threads`` of ``serve`` does
    not say. None: as many as it has threads; if neither says, Ray keeps 1, and a server that is
    alone takes all."""
    gpus: Annotated[float, Meta(ge=0, le=1000)] = 0
    memory: str | None = None
    """Memory that Ray keeps for each, such as ``8Gi``."""
    grace: Annotated[int, Meta(ge=1, le=86_400)] = 120
    """How long its streams may go on when it is to end. Those that take longer go on at others."""
    surge: Annotated[int, Meta(ge=0, le=100)] = 25
    """Percent of replicas that there may be in addition while a new configuration is rolled out,
    rounded up; with 0, old ones end before new ones begin."""

    @property
    def most(self) -> int:
        return max(self.min, 1) if self.max is None else self.max

    @property
    def scales(self) -> bool:
        return self.most != self.min

    @property
    def memory_bytes(self) -> int | None:
        if self.memory is None:
            return None
        found = MEMORY.fullmatch(self.memory)
        assert found is not None, "it was checked"
        return int(float(found[1]) * _BYTES[found[2]])


class Autoscaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When there should be more servers, or fewer."""

    sequences: Annotated[float, Meta(gt=0, le=1_000_000)] = 8
    """Sequences, running and waiting, that a replica is meant to have."""
    slo: tuple[str, ...] = ()
    """The service level, as ``penstock bench serve --slo`` is given it."""
    goodput: Share = 0.95
    """The share of requests that are to keep to it."""
    window: Seconds = 30
    """Seconds of past requests by which that share is judged."""
    up_after: Annotated[float, Meta(ge=0, le=86_400)] = 10
    """Seconds for which more are wanted before there are."""
    down_after: Annotated[float, Meta(ge=0, le=86_400)] = 120
    """Seconds for which fewer are enough before there are."""

    @property
    def limits(self) -> tuple[Limit, ...]:
        return tuple(map(parse_limit, self.slo))


class Routing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where requests come in, and which server gets them."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65_535)] = 9000
    routers: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Routers, each of which knows the loads of its own requests alone."""
    policy: str = "cost"
    decode_tokens: Annotated[int, Meta(ge=1, le=1 << 30)] = LoadWeights().decode_tokens
    uncached: Annotated[float, Meta(ge=0, le=1e6)] = LoadWeights().uncached
    lost: Annotated[float, Meta(ge=0, le=1e6)] = LoadWeights().lost
    wait: Annotated[float, Meta(ge=0, le=86_400)] = 60
    """How long a request waits for a server where none can take it."""
    request_timeout: Seconds | None = None
    allowed_hosts: tuple[str, ...] = ()
    """Names by which clients may ask, as ``penstock route --allowed-host``."""
    tls_cert: str | None = None
    tls_key: str | None = None
    access_log: bool = True


class Kubernetes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What manifests need besides."""

    image: str = ""
    """An image that has Penstock, and for KubeRay its extra ``ray``."""
    namespace: str | None = None
    models_claim: str | None = None
    """A volume's claim with models, which every server has at ``models_path``."""
    models_path: str = "/models"
    api_keys_secret: str | None = None
    """A Secret whose ``keys`` are those of clients, separated by commas."""
    start: Annotated[int, Meta(ge=1, le=86_400)] = 1800
    """Seconds that a server may take to load its model, or to get it from the hub."""
    ray_version: str = "2.60.0"
    """That of Ray in the image."""
