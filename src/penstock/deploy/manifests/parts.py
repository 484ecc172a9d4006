"""What manifests have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from penstock.deploy.config import DeployConfig

Manifest = dict[str, Any]
"""An object of Kubernetes, or a part of one."""
_VOLUME = "models"


def labels(config: DeployConfig, component: str) -> Manifest:
    return {
        "app.kubernetes.io/name": "penstock",
        "app.kubernetes.io/instance": config.name,
        "app.kubernetes.io/component": component,
    }


def metadata(config: DeployConfig, component: str, name: str) -> Manifest:
    found: Manifest = {"name": name, "labels": labels(config, component)}
    if config.kubernetes.namespace is not None:
        found["namespace"] = config.kubernetes.namespace
    return found


def resources(config: DeployConfig, more_memory: int = 0) -> Manifest:
    """What one replica asks for. ``more_memory``: bytes beside those of the server."""
    wanted: Manifest = {"cpu": quantity(config.cpus)}
    memory = config.replicas.memory_bytes
    if memory is not None:
        wanted["memory"] = f"{math.ceil((memory + more_memory) / (1 << 20))}Mi"
    limits = {name: value for name, value in wanted.items() if name == "memory"}
    if config.replicas.gpus:
        limits["nvidia.com/gpu"] = str(int(config.replicas.gpus))
    return {"requests": wanted, "limits": limits} if limits else {"requests": wanted}


def api_keys(config: DeployConfig) -> list[Manifest]:
    """The variable that has the keys of clients, where a secret is named."""
    secret = config.kubernetes.api_keys_secret
    return [] if secret is None else [from_secret("PENSTOCK_API_KEYS", secret, "keys")]


def from_secret(variable: str, secret: str, key: str) -> Manifest:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def mounts(config: DeployConfig) -> list[Manifest]:
    """Where a container has the models of a volume, if one is named."""
    if config.kubernetes.models_claim is None:
        return []
    return [{"name": _VOLUME, "mountPath": config.kubernetes.models_path, "readOnly": True}]


def volumes(config: DeployConfig) -> list[Manifest]:
    claim = config.kubernetes.models_claim
    if claim is None:
        return []
    return [{"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}]


def verbatim(words: Sequence[str]) -> list[str]:
    """A command line in which Kubernetes finds no ``$(VARIABLE)`` to put a value in place of."""
    return [word.replace("$", "$$") for word in words]


def filled(**fields: Any) -> Manifest:
    """Those that are not empty."""
    return {name: value for name, value in fields.items() if value not in (None, [], {}, "")}


def quantity(count: float) -> str:
    """A number as Kubernetes has it: whole, or in thousandths, rounded up."""
    return str(int(count)) if count == int(count) else f"{math.ceil(count * 1000)}m"
