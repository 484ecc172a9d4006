"""What manifests cannot say, or Kubernetes would refuse, named before anything is applied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from penstock.deploy.config import DeployConfig
from penstock.errors import ConfigError

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL.pattern}(\.{_LABEL.pattern})*")
"""Names of objects of Kubernetes."""
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+\w*")
_MOST_DELAY_S: Final = 3600
"""What a scaler of Kubernetes takes as the time for which a number is wanted."""
_TAKEN: Final = {6379: "Ray's head", 8265: "Ray's dashboard", 10_001: "Ray's clients"}


def check(kind: str, config: DeployConfig) -> None:
    """Raise ConfigError that names the key and the fix, where there are no good manifests of this
    kind, ``kuberay`` or ``kubernetes``, for a configuration."""
    for key, trouble in _of_both(config):
        raise ConfigError(f"{key}: {trouble}")
    for key, trouble in _of_ray(config) if kind == "kuberay" else _of_plain(config):
        raise ConfigError(f"{key}: {trouble}")


def _of_both(config: DeployConfig) -> Iterator[tuple[str, str]]:
    own = config.kubernetes
    if not own.image or own.image != own.image.strip():
        yield (
            "kubernetes.image",
            "name the image that has Penstock; the repository's Dockerfile builds one",
        )
    if own.namespace is not None and not _LABEL.fullmatch(own.namespace):
        yield "kubernetes.namespace", _no_name(own.namespace)
    for key, name in (
        ("models_claim", own.models_claim),
        ("api_keys_secret", own.api_keys_secret),
    ):
        if name is not None and not _SUBDOMAIN.fullmatch(name):
            yield f"kubernetes.{key}", _no_name(name)
    path = own.models_path
    if not path.startswith("/") or ":" in path:
        yield "kubernetes.models_path", f"{path!r} is no absolute path, such as '/models'"
    if config.routing.tls_cert is not None:
        yield (
            "routing.tls_cert",
            "in Kubernetes HTTPS is the work of an Ingress or a Gateway before the Service; leave "
            "tls_cert and tls_key out",
        )
    if not float(config.replicas.gpus).is_integer():
        yield "replicas.gpus", f"a pod has whole GPUs, not {config.replicas.gpus:g}"


def _of_plain(config: DeployConfig) -> Iterator[tuple[str, str]]:
    scaling = config.autoscaling
    if config.replicas.min == 0:
        yield (
            "replicas.min",
            "without Ray nothing starts a first server when a request comes; write 1",
        )
    if not config.replicas.scales:
        return
    for key, seconds in (("up_after", scaling.up_after), ("down_after", scaling.down_after)):
        if seconds > _MOST_DELAY_S:
            yield (
                f"autoscaling.{key}",
                f"a scaler of Kubernetes takes at most {_MOST_DELAY_S} seconds",
            )


def _of_ray(config: DeployConfig) -> Iterator[tuple[str, str]]:
    if not _VERSION.fullmatch(config.kubernetes.ray_version):
        yield (
            "kubernetes.ray_version",
            f"{config.kubernetes.ray_version!r} is no version, such as '2.60.0'",
        )
    if (user := _TAKEN.get(config.routing.port)) is not None:
        yield "routing.port", f"{config.routing.port} is the port of {user}; write another one"


def _no_name(name: str) -> str:
    return f"{name!r} is no name in Kubernetes: lower-case letters, digits and dashes"
