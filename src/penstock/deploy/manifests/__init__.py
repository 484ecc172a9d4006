"""What Kubernetes is to be given for a configuration.

``kubernetes`` is plain: a Deployment of servers with a headless Service, ``penstock route`` before
them, and a Service for clients. ``kuberay`` is a RayService, whose application is that of
``penstock deploy``. Both are values of JSON; :func:`text` writes them as YAML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from penstock.deploy.config import DeployConfig
from penstock.deploy.manifests.checks import check
from penstock.deploy.manifests.kuberay import kuberay
from penstock.deploy.manifests.kubernetes import kubernetes
from penstock.deploy.manifests.parts import Manifest
from penstock.deploy.manifests.yaml_text import written

MANIFESTS: Final[Mapping[str, Callable[[DeployConfig], list[Manifest]]]] = {
    "kuberay": kuberay,
    "kubernetes": kubernetes,
}


def text(kind: str, config: DeployConfig) -> str:
    """The manifests of a kind as YAML, one document after the other. Raises ConfigError naming what
    the configuration lacks, and what these manifests cannot say."""
    check(kind, config)
    documents = [written(each) for each in MANIFESTS[kind](config)]
    return "\n".join(_remarks(kind, config)) + "\n---\n" + "---\n".join(documents)


def _remarks(kind: str, config: DeployConfig) -> Iterator[str]:
    """What whoever applies them has to know, as comments."""
    yield f"# {config.name}, by 'penstock deploy --manifests {kind}'."
    if kind == "kuberay":
        return
    where = "" if config.kubernetes.namespace is None else f" -n {config.kubernetes.namespace}"
    yield "# The secret that servers and router share:"
    yield (
        f"#   kubectl create secret generic {config.name}-admin{where} "
        "--from-literal=key=$(openssl rand -hex 16)"
    )
    if config.replicas.scales:
        yield "# The scaler reads metrics of pods, which an adapter for Prometheus has to tell."
    if config.replicas.scales and config.autoscaling.slo:
        yield "# It knows sequences alone: servers count autoscaling.slo, and nothing follows it."
