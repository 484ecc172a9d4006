"""A fleet on KubeRay: a RayService, whose application is that of ``penstock deploy``."""

from __future__ import annotations

import math
from typing import Any, Final

from penstock.deploy.config import DeployConfig
from penstock.deploy.manifests.parts import (
    Manifest,
    api_keys,
    filled,
    labels,
    metadata,
    mounts,
    resources,
    volumes,
)
from penstock.deploy.manifests.yaml_text import written

IMPORT_PATH: Final = "penstock.deploy.app:build"
_OF_RAY: Final = 2 << 30
"""Bytes that Ray's own processes take in a pod, beside a server."""
_NO_NICE: Final = {"name": "RAY_worker_niceness", "value": "0"}
"""Ray's processes give way to others by 15 otherwise, and servers with them."""
_HEAD: Final = {
    "requests": {"cpu": "1", "memory": "4Gi"},
    "limits": {"memory": "4Gi"},
}


def kuberay(config: DeployConfig) -> list[Manifest]:
    """One RayService. A pod of its workers has one replica."""
    most = config.replicas.most
    surge = math.ceil(config.replicas.surge * most / 100)
    worker = {
        "groupName": "replicas",
        "replicas": config.replicas.min,
        "minReplicas": config.replicas.min,
        # One that is replaced goes when its successor is there.
        "maxReplicas": most + surge,
        # Ray counts whole CPUs, and keeps those of a replica: so it places one in each pod.
        "rayStartParams": {"num-cpus": str(math.ceil(config.cpus))},
        "template": _pod(config, "worker", resources(config, _OF_RAY)),
    }
    head = {
        "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0"},
        "template": _pod(config, "head", _HEAD),
    }
    return [
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayService",
            "metadata": metadata(config, "fleet", config.name),
            "spec": {
                "serveConfigV2": written(serve_config(config)),
                "rayClusterConfig": {
                    "rayVersion": config.kubernetes.ray_version,
                    "enableInTreeAutoscaling": True,
                    "headGroupSpec": head,
                    "workerGroupSpecs": [worker],
                },
            },
        }
    ]


def serve_config(config: DeployConfig) -> dict[str, Any]:
    """The configuration in Ray Serve's own form, as ``serve deploy`` takes it, too."""
    tables = config.tables
    # What a pod has is what Ray may give, of which it keeps some for itself.
    replicas = {k: v for k, v in tables.get("replicas", {}).items() if k != "memory"}
    routing = {**tables.get("routing", {}), "host": "0.0.0.0"}
    routing.setdefault("allowed_hosts", ["*"])
    # A whole number, as Ray counts in a pod; servers keep the threads that they have without Ray.
    replicas["cpus"] = math.ceil(config.cpus)
    serve = dict(tables.get("serve", {}))
    if config.threads is not None:
        serve["threads"] = config.threads
    own = ("replicas", "routing", "kubernetes", "serve")
    kept = {k: v for k, v in tables.items() if k not in own}
    args = {**kept, **filled(serve=serve, replicas=replicas), "routing": routing}
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": config.routing.port},
        "applications": [
            {
                "name": config.name,
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": args,
            }
        ],
    }


def _pod(config: DeployConfig, kind: str, wanted: Manifest) -> Manifest:
    ports = [{"name": "serve", "containerPort": config.routing.port}]
    if kind == "head":
        ports += [
            {"name": "gcs-server", "containerPort": 6379},
            {"name": "dashboard", "containerPort": 8265},
            {"name": "client", "containerPort": 10001},
        ]
    container = filled(
        name=f"ray-{kind}",
        image=config.kubernetes.image,
        env=[_NO_NICE, *(api_keys(config) if kind == "worker" else [])],
        ports=ports,
        resources=wanted,
        volumeMounts=mounts(config),
    )
    spec = filled(
        # Long enough for what is open to end, where a pod is taken away.
        terminationGracePeriodSeconds=config.replicas.grace + 60 if kind == "worker" else None,
        containers=[container],
        volumes=volumes(config),
    )
    return {"metadata": {"labels": labels(config, kind)}, "spec": spec}
