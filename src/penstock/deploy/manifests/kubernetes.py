"""A fleet on Kubernetes without Ray: servers, and ``penstock route`` before them."""

from __future__ import annotations

import math
from typing import Final

from penstock.deploy.config import DeployConfig
from penstock.deploy.manifests.parts import (
    Manifest,
    api_keys,
    filled,
    from_secret,
    labels,
    metadata,
    mounts,
    quantity,
    resources,
    verbatim,
    volumes,
)
from penstock.deploy.words import option_words

SERVER_PORT: Final = 8000
_SEEN_S: Final = 5
"""Seconds after which a router has seen that a server drains: two of its probes, and a little."""
_LAST_S: Final = 15
"""Seconds beyond its grace before a pod is killed."""
_DRAIN: Final = (
    "import os, time, urllib.request as r\n"
    "key = {'authorization': 'Bearer ' + os.environ['PENSTOCK_ADMIN_KEY']}\n"
    f"r.urlopen(r.Request('http://127.0.0.1:{SERVER_PORT}/admin/drain', b'{{}}', key), timeout=5)\n"
    f"time.sleep({_SEEN_S})\n"
)


def kubernetes(config: DeployConfig) -> list[Manifest]:
    """Two Deployments and their Services; where the number of servers may change, its scaler."""
    found = [_servers(config), _headless(config), _router(config), _service(config)]
    return [*found, _scaler(config)] if config.replicas.scales else found


def _servers(config: DeployConfig) -> Manifest:
    grace, start = config.replicas.grace, config.kubernetes.start
    words = ["penstock", "serve", *config.words, "--host=0.0.0.0", f"--port={SERVER_PORT}"]
    ready = {"httpGet": {"path": "/ready", "port": "http"}}
    container = filled(
        name="server",
        image=config.kubernetes.image,
        command=verbatim([*words, f"--grace={grace}", "--no-page", "--no-access-log"]),
        env=[_admin_key(config), *api_keys(config)],
        ports=[{"name": "http", "containerPort": SERVER_PORT}],
        resources=resources(config),
        volumeMounts=mounts(config),
        startupProbe={**ready, "periodSeconds": 2, "failureThreshold": math.ceil(start / 2)},
        readinessProbe={**ready, "periodSeconds": 2},
        # It restarts its engine by itself; what this finds is a process that answers nothing.
        livenessProbe={
            "httpGet": {"path": "/health", "port": "http"},
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
        lifecycle={"preStop": {"exec": {"command": ["python", "-c", _DRAIN]}}},
    )
    pod = filled(
        terminationGracePeriodSeconds=grace + _SEEN_S + _LAST_S,
        containers=[container],
        volumes=volumes(config),
    )
    replicas = None if config.replicas.scales else config.replicas.min
    return _deployment(config, "server", f"{config.name}-servers", replicas, pod)


def _router(config: DeployConfig) -> Manifest:
    routing, grace = config.routing, config.replicas.grace
    options = {
        "port": routing.port,
        "policy": routing.policy,
        "decode-tokens": routing.decode_tokens,
        "uncached": routing.uncached,
        "lost": routing.lost,
        "grace": grace,
        "allowed-host": list(routing.allowed_hosts) or ["*"],
    }
    if routing.wait:
        options |= {"wait": routing.wait, "resume-timeout": routing.wait}
    if routing.request_timeout is not None:
        options["request-timeout"] = routing.request_timeout
    if not routing.access_log:
        options["no-access-log"] = True
    words = [word for key, value in options.items() for word in option_words(key, value)]
    url = f"http://{config.name}-servers:{SERVER_PORT}"
    container = filled(
        name="router",
        image=config.kubernetes.image,
        command=verbatim(["penstock", "route", url, "--resolve", "--host=0.0.0.0", *words]),
        env=[_admin_key(config)],
        ports=[{"name": "http", "containerPort": routing.port}],
        resources={"requests": {"cpu": "1", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        # Without servers it is ready, too: requests wait for one.
        readinessProbe={"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 2},
        livenessProbe={
            "httpGet": {"path": "/health", "port": "http"},
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
        # Meanwhile Kubernetes takes it out of the Service.
        lifecycle={"preStop": {"exec": {"command": ["sleep", str(_SEEN_S)]}}},
    )
    pod = {
        "terminationGracePeriodSeconds": grace + _SEEN_S + _LAST_S,
        "containers": [container],
    }
    return _deployment(config, "router", f"{config.name}-router", routing.routers, pod)


def _deployment(
    config: DeployConfig, component: str, name: str, replicas: int | None, pod: Manifest
) -> Manifest:
    surge = config.replicas.surge if component == "server" else 25
    strategy = {"maxSurge": f"{surge}%", "maxUnavailable": 0 if surge else 1}
    selector = labels(config, component)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(config, component, name),
        "spec": filled(
            replicas=replicas,
            selector={"matchLabels": selector},
            strategy={"type": "RollingUpdate", "rollingUpdate": strategy},
            template={"metadata": {"labels": selector}, "spec": pod},
        ),
    }


def _headless(config: DeployConfig) -> Manifest:
    """What the router resolves: the addresses of the servers that are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(config, "server", f"{config.name}-servers"),
        "spec": {
            "clusterIP": "None",
            "selector": labels(config, "server"),
            "ports": [{"name": "http", "port": SERVER_PORT, "targetPort": "http"}],
        },
    }


def _service(config: DeployConfig) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(config, "router", config.name),
        "spec": {
            "selector": labels(config, "router"),
            "ports": [{"name": "http", "port": config.routing.port, "targetPort": "http"}],
        },
    }


def _scaler(config: DeployConfig) -> Manifest:
    """Scales by sequences, which an adapter for Prometheus' metrics tells Kubernetes."""
    scaling = config.autoscaling
    metrics = [
        {
            "type": "Pods",
            "pods": {
                "metric": {"name": name},
                "target": {"type": "AverageValue", "averageValue": f"{value}"},
            },
        }
        for name, value in (
            ("penstock_num_requests_running", quantity(scaling.sequences)),
            ("penstock_num_requests_waiting", "1"),
        )
    ]
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(config, "server", f"{config.name}-servers"),
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": f"{config.name}-servers",
            },
            "minReplicas": config.replicas.min,
            "maxReplicas": config.replicas.most,
            "metrics": metrics,
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": math.ceil(scaling.up_after)},
                "scaleDown": {"stabilizationWindowSeconds": math.ceil(scaling.down_after)},
            },
        },
    }


def _admin_key(config: DeployConfig) -> Manifest:
    return from_secret("PENSTOCK_ADMIN_KEY", f"{config.name}-admin", "key")
