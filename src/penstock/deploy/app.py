"""A configuration as an application of Ray Serve.

``penstock.deploy.app:build`` is the import path for Ray's own configuration files, such as those of
KubeRay; the tables of the configuration are its ``args``.
"""

from __future__ import annotations

import warnings
from typing import Any, Final

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.deployment import Application

from penstock.deploy.autoscaling_policy import ScalingPolicy
from penstock.deploy.config import DeployConfig
from penstock.deploy.ingress import IngressActor
from penstock.deploy.replica import ReplicaActor, digest
from penstock.deploy.request_router import MembershipRouter
from penstock.version import __version__

REPLICAS: Final = "replicas"
INGRESS: Final = "ingress"
"""Names of the deployments."""
_HEALTH_S: Final = 2.0
_FIGURES_S: Final = 2.0
_LOOK_BACK_S: Final = 6.0
"""Seconds of figures whose mean is taken; as long as a burst must be to count."""
_STARTS: Final = 2
"""Starts that fail in a row before no more are tried: of one failure the machine may be the cause,
of two the configuration is."""
_MOST_OPEN: Final = 100_000
"""Requests that a router may have open; its own limits come first."""
_SHUTDOWN_S: Final = 30.0
"""Seconds beyond the grace of streams after which Ray kills an actor that does not end."""


def build(args: dict[str, Any]) -> Application:
    """``args``: the tables of a configuration. Raises ConfigError naming what is wrong in them."""
    return application(DeployConfig.of(args))


def application(config: DeployConfig) -> Application:
    """What Ray Serve runs for a configuration."""
    tables, replicas, routing = config.tables, config.replicas, config.routing
    actor: dict[str, Any] = {"num_cpus": config.cpus, "num_gpus": replicas.gpus}
    if replicas.memory_bytes is not None:
        actor["memory"] = replicas.memory_bytes
    common: dict[str, Any] = {
        "health_check_period_s": _HEALTH_S,
        "graceful_shutdown_wait_loop_s": 0.5,
        "graceful_shutdown_timeout_s": replicas.grace + _SHUTDOWN_S,
        "max_constructor_retry_count": _STARTS,
    }
    number: dict[str, Any] = {"num_replicas": replicas.min}
    if replicas.scales:
        number = {"autoscaling_config": autoscaling(config)}
    served = serve.deployment(
        ReplicaActor,
        name=REPLICAS,
        ray_actor_options=actor,
        max_surge_percent=replicas.surge,
        request_router_config=RequestRouterConfig(
            request_router_class=MembershipRouter,
            request_router_kwargs={"deployment": config.name},
        ),
        **number,
        **common,
    )
    of_replica, of_ingress = _of_replica(tables), _of_ingress(tables)
    # Ray leaves actors of an equal version as they are when a configuration is applied again.
    served = served.options(version=digest(__version__, of_replica), _internal=True)
    ingress = serve.deployment(
        serve.ingress()(IngressActor),
        name=INGRESS,
        num_replicas=routing.routers,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_MOST_OPEN,
        max_surge_percent=100,
        **common,
    ).options(version=digest(__version__, of_ingress), _internal=True)
    return ingress.bind(of_ingress, served.bind(of_replica))


def autoscaling(config: DeployConfig) -> AutoscalingConfig:
    """How Ray Serve asks for the number of replicas."""
    scaling, replicas = config.autoscaling, config.replicas
    with warnings.catch_warnings():
        # Ray 2.60 has no other way to be told more often than every ten seconds.
        warnings.simplefilter("ignore")
        return AutoscalingConfig(
            min_replicas=replicas.min,
            max_replicas=replicas.most,
            initial_replicas=max(replicas.min, 1),
            upscale_delay_s=scaling.up_after,
            downscale_delay_s=scaling.down_after,
            metrics_interval_s=_FIGURES_S,
            look_back_period_s=_LOOK_BACK_S,
            policy=AutoscalingPolicy(
                policy_function=ScalingPolicy,
                policy_kwargs={
                    "sequences": scaling.sequences,
                    "goodput": scaling.goodput if scaling.slo else None,
                    "window_s": scaling.window,
                },
            ),
        )


def _of_replica(tables: dict[str, Any]) -> dict[str, Any]:
    """The tables that a replica's server depends on. Others may change without a new replica."""
    own = ("cpus", "gpus", "grace")
    replicas = {k: v for k, v in tables.get("replicas", {}).items() if k in own}
    scaling = {k: v for k, v in tables.get("autoscaling", {}).items() if k in ("slo", "window")}
    kept = {k: v for k, v in tables.items() if k in ("model", "serve", "revision")}
    return {**kept, "replicas": replicas, "autoscaling": scaling}


def _of_ingress(tables: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in tables.items() if k in ("name", "routing")}
