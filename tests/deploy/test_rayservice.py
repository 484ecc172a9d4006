"""What KubeRay passes on to Ray Serve, by Ray's own schema, and what Ray is then asked to run."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from support.deploy_configs import deployable
from support.needs import require_ray

from penstock.deploy import manifests
from penstock.deploy.config import DeployConfig

require_ray()
pytestmark = pytest.mark.slow  # Ray takes seconds to import


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(deployable())
def test_any_configuration_is_taken_by_rays_schema(tables: dict[str, Any]) -> None:
    from ray.serve.schema import ServeDeploySchema

    config = DeployConfig.of(tables)
    (service,) = manifests.MANIFESTS["kuberay"](config)
    told = yaml.safe_load(service["spec"]["serveConfigV2"])
    taken = ServeDeploySchema.model_validate(told)
    assert (taken.http_options.host, taken.http_options.port) == ("0.0.0.0", config.routing.port)
    (application,) = taken.applications
    assert (application.name, application.route_prefix) == (config.name, "/")
    # Nothing has been left out that Ray does not know.
    kept = taken.model_dump(mode="json", exclude_unset=True)
    assert kept["applications"][0]["args"] == told["applications"][0]["args"]

    module, _, name = application.import_path.partition(":")
    built = getattr(import_module(module), name)(application.args)
    ingress = built._bound_deployment
    servers = ingress.init_args[1]._bound_deployment
    assert (ingress.name, servers.name) == ("ingress", "replicas")
    assert ingress.num_replicas == config.routing.routers
    options = servers._replica_config.ray_actor_options
    assert options["num_cpus"] <= int(
        service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["rayStartParams"]["num-cpus"]
    )
    assert options["num_gpus"] == config.replicas.gpus
    scaling = servers._deployment_config.autoscaling_config
    if config.replicas.scales:
        assert (scaling.min_replicas, scaling.max_replicas) == (
            *(config.replicas.min, config.replicas.most),
        )
    else:
        assert (scaling, servers.num_replicas) == (None, config.replicas.min)


def test_only_what_a_server_is_given_makes_it_another() -> None:
    """Ray decides by a version whether an actor stays."""
    from penstock.deploy.app import application

    def versions(**tables: Any) -> tuple[str, str]:
        ingress = application(
            DeployConfig.of({"replicas": {"cpus": 1}, **tables})
        )._bound_deployment
        return ingress.version, ingress.init_args[1]._bound_deployment.version

    router, server = versions()
    for tables in (
        {"replicas": {"cpus": 1, "max": 9, "surge": 0, "memory": "1Gi"}},
        {"autoscaling": {"sequences": 3, "up_after": 1}},
        {"kubernetes": {"image": "a"}},
    ):
        assert versions(**tables) == (router, server)
    assert versions(routing={"wait": 1}) == (versions(routing={"wait": 1})[0], server)
    assert versions(routing={"wait": 1})[0] != router
    for tables in (
        {"model": "a"},
        {"revision": "2"},
        {"serve": {"threads": 2}},
        {"replicas": {"cpus": 2}},
        {"replicas": {"cpus": 1, "grace": 9}},
        {"autoscaling": {"slo": ["ttft:1s"]}},
    ):
        assert versions(**tables)[0] == router
        assert versions(**tables)[1] != server
