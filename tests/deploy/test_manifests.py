"""Manifests for Kubernetes, compared with its schemas and with the configuration."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from support.deploy_configs import deployable

from penstock.cli.main import main
from penstock.cli.parser import Parser
from penstock.deploy import manifests
from penstock.deploy.config import DeployConfig
from penstock.deploy.manifests.yaml_text import written
from penstock.errors import ConfigError

kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="the extra test is not installed"
)

KUBERNETES = "1.33"
kept_schemas = functools.cache(kubernetes_validate.utils.schema_contents)
IMAGE = {"kubernetes": {"image": "penstock:1"}}
Object = dict[str, Any]


@pytest.fixture(autouse=True, scope="module")
def _schemas_are_read_once() -> Iterator[None]:
    """They are megabytes of JSON, which are read again for each object otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes_validate.utils, "schema_contents", kept_schemas)
        yield


def objects(kind: str, tables: Object) -> list[Object]:
    """What the text of the manifests says to whoever reads YAML."""
    found = yaml.safe_load_all(manifests.text(kind, DeployConfig.of(tables)))
    return [each for each in found if each is not None]


def by_name(tables: Object) -> dict[str, Object]:
    """Plain manifests by ``Kind/name``, checked against the schemas."""
    found = {}
    for each in objects("kubernetes", tables):
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
        found[f"{each['kind']}/{each['metadata']['name']}"] = each
    return found


def container(deployment: Object) -> Object:
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def variables(of: Object) -> dict[str, Any]:
    """Those that come from secrets."""
    found = of.get("env", [])
    return {each["name"]: each["valueFrom"] for each in found if "valueFrom" in each}


def run_by_kubernetes(command: list[str]) -> list[str]:
    """What becomes of a container's command: ``$(NAME)`` is replaced, and ``$$`` is one ``$``."""
    assert not any(re.search(r"(?<!\$)(\$\$)*\$\(", word) for word in command)
    return [word.replace("$$", "$") for word in command]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(deployable())
def test_any_configuration_gives_valid_objects_that_say_the_same(tables: Object) -> None:
    config = DeployConfig.of(tables)
    made = manifests.MANIFESTS["kubernetes"](config)
    assert objects("kubernetes", tables) == made
    found = by_name(tables)
    name = config.name
    scaler = {f"HorizontalPodAutoscaler/{name}-servers"} if config.replicas.scales else set()
    assert found.keys() == scaler | {
        *(f"Deployment/{name}-servers", f"Service/{name}-servers"),
        *(f"Deployment/{name}-router", f"Service/{name}"),
    }
    server = container(found[f"Deployment/{name}-servers"])
    words = run_by_kubernetes(server["command"])
    assert words[:2] == ["penstock", "serve"]
    assert words[2 : 2 + len(config.words)] == config.words
    assert f"--grace={config.replicas.grace}" in words[2 + len(config.words) :]
    router = container(found[f"Deployment/{name}-router"])
    (service,) = found[f"Service/{name}"]["spec"]["ports"]
    assert f"--port={service['port']}" in router["command"]


@settings(max_examples=25, deadline=None)
@given(deployable())
def test_any_configuration_gives_a_rayservice_that_says_the_same(tables: Object) -> None:
    config = DeployConfig.of(tables)
    (service,) = objects("kuberay", tables)
    assert [service] == manifests.MANIFESTS["kuberay"](config)
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    for group in (head, workers):
        started = group["rayStartParams"]
        assert all(isinstance(value, str) for value in started.values())
        pod = {"apiVersion": "v1", "kind": "Pod", **group["template"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        assert "serve" in [port["name"] for port in container({"spec": group})["ports"]]
    numbers = [workers[key] for key in ("minReplicas", "replicas", "maxReplicas")]
    assert numbers == sorted(numbers)
    assert numbers[0] == config.replicas.min
    assert numbers[2] >= config.replicas.most
    application = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"][0]
    deployed = DeployConfig.of(application["args"])
    assert (deployed.name, deployed.revision) == (config.name, config.revision)
    assert deployed.autoscaling == config.autoscaling
    assert sorted(deployed.words) == sorted(config.words)
    assert deployed.routing.wait == config.routing.wait
    # Of what Ray has in a pod one replica takes so much that no second one fits.
    whole = int(workers["rayStartParams"]["num-cpus"])
    assert whole / 2 < deployed.cpus <= whole


def plain_scalars(text: str) -> Iterator[str]:
    for token in yaml.scan(text):
        if isinstance(token, yaml.ScalarToken) and token.plain:
            yield token.value


@settings(max_examples=12, deadline=None)
@given(deployable())
def test_no_text_stands_where_another_reader_sees_something_else(tables: Object) -> None:
    # Numbers and truth values as YAML 1.1 and 1.2 and Go's packages know them.
    strange = re.compile(
        r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*(:[0-5]?[0-9])*)"
        r"|[-+]?(\.?[0-9][0-9_]*|[0-9][0-9_]*\.[0-9_]*)([eE][-+]?[0-9]+)?|[-+]?\.(inf|nan)"
        r"|y|n|yes|no|on|off|true|false|null|~|[0-9]{4}-.*",
        re.IGNORECASE,
    )
    for kind in manifests.MANIFESTS:
        for document in objects(kind, tables):
            embedded = document["spec"].get("serveConfigV2")
            for text in filter(None, (written(document), embedded)):
                for scalar in plain_scalars(text):
                    if strange.fullmatch(scalar):
                        assert not isinstance(yaml.safe_load(scalar), str), scalar


@pytest.mark.parametrize("kind", sorted(manifests.MANIFESTS))
@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({}, "kubernetes.image: name the image that has Penstock"),
        ({"kubernetes": {"image": " a"}}, "kubernetes.image: name the image"),
        ({"kubernetes": {"namespace": "My"}}, "kubernetes.namespace: 'My' is no name in Kubern"),
        ({"kubernetes": {"models_claim": "a/b"}}, "kubernetes.models_claim: 'a/b' is no name"),
        ({"kubernetes": {"api_keys_secret": "a_b"}}, "kubernetes.api_keys_secret: 'a_b' is no"),
        ({"kubernetes": {"models_path": "models"}}, "models_path: 'models' is no absolute path"),
        ({"routing": {"tls_cert": "a", "tls_key": "b"}}, "routing.tls_cert: in Kubernetes HTTPS"),
        ({"replicas": {"gpus": 0.5}}, "replicas.gpus: a pod has whole GPUs, not 0.5"),
    ],
)
def test_what_no_manifest_can_say_is_refused(kind: str, tables: Object, told: str) -> None:
    image = IMAGE if tables else {}
    with pytest.raises(ConfigError) as caught:
        manifests.text(kind, DeployConfig.of({**image, **_with_image(tables)}))
    assert told in str(caught.value)


def _with_image(tables: Object) -> Object:
    own = tables.get("kubernetes")
    return {**tables, "kubernetes": {"image": "a", **own}} if own else tables


@pytest.mark.parametrize(
    ("kind", "tables", "told"),
    [
        ("kubernetes", {"replicas": {"min": 0}}, "replicas.min: without Ray nothing starts"),
        (
            "kubernetes",
            {"replicas": {"max": 2, "cpus": 1}, "autoscaling": {"down_after": 3601}},
            "autoscaling.down_after: a scaler of Kubernetes takes at most 3600 seconds",
        ),
        ("kuberay", {"routing": {"port": 8265}}, "routing.port: 8265 is the port of Ray's dash"),
    ],
)
def test_what_one_kind_cannot_say_is_refused(kind: str, tables: Object, told: str) -> None:
    config = DeployConfig.of({**IMAGE, **tables})
    with pytest.raises(ConfigError) as caught:
        manifests.text(kind, config)
    assert told in str(caught.value)
    other = next(each for each in manifests.MANIFESTS if each != kind)
    assert manifests.text(other, config)


def test_the_command_prints_them_and_names_a_missing_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('name = "chat"\n[kubernetes]\nimage = "penstock:1"\n')
    assert main(["deploy", str(path), "--manifests", "kubernetes"]) == 0
    assert capsys.readouterr().out == manifests.text("kubernetes", DeployConfig.read(path))
    path.write_text("")
    assert main(["deploy", str(path), "--manifests", "kuberay"]) == 2
    assert "kubernetes.image: name the image" in capsys.readouterr().err


def test_a_pod_ends_only_after_its_server() -> None:
    """Its drain, then its grace, then a little more: so no stream is cut by Kubernetes."""
    for grace in (1, 120, 86_400):
        found = by_name({**IMAGE, "replicas": {"grace": grace}})
        for name in ("penstock-servers", "penstock-router"):
            deployment = found[f"Deployment/{name}"]
            assert f"--grace={grace}" in container(deployment)["command"]
            last = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            assert last >= 5 + grace + 10
        (service,) = objects("kuberay", {**IMAGE, "replicas": {"grace": grace}})
        workers = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
        assert workers["template"]["spec"]["terminationGracePeriodSeconds"] >= grace + 30


def test_servers_are_probed_by_what_they_say_of_themselves() -> None:
    server = container(
        by_name({"kubernetes": {"image": "a", "start": 901}})["Deployment/penstock-servers"]
    )
    started, ready, alive = (
        server[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")
    )
    assert started["httpGet"] == ready["httpGet"] == {"path": "/ready", "port": "http"}
    assert alive["httpGet"]["path"] == "/health"
    assert started["failureThreshold"] * started["periodSeconds"] >= 901
    # The router finds pods by its own probes; a pod that drains says so at once.
    assert ready["periodSeconds"] <= 2
    assert "/admin/drain" in shlex.join(server["lifecycle"]["preStop"]["exec"]["command"])


def test_secrets_reach_who_needs_them_and_stand_in_no_manifest() -> None:
    tables = {"kubernetes": {"image": "a", "api_keys_secret": "clients", "namespace": "ml"}}
    found = by_name(tables)
    admin = {"secretKeyRef": {"name": "penstock-admin", "key": "key"}}
    keys = {"secretKeyRef": {"name": "clients", "key": "keys"}}
    assert variables(container(found["Deployment/penstock-servers"])) == {
        "PENSTOCK_ADMIN_KEY": admin,
        "PENSTOCK_API_KEYS": keys,
    }
    assert variables(container(found["Deployment/penstock-router"])) == {
        "PENSTOCK_ADMIN_KEY": admin
    }
    assert {each["metadata"]["namespace"] for each in found.values()} == {"ml"}
    text = manifests.text("kubernetes", DeployConfig.of(tables))
    assert "kubectl create secret generic penstock-admin -n ml --from-literal=key=" in text
    (service,) = objects("kuberay", tables)
    workers = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    assert variables(container({"spec": workers})) == {"PENSTOCK_API_KEYS": keys}


def test_models_are_read_from_a_volume() -> None:
    tables = {
        "model": "/m/llama",
        "kubernetes": {"image": "a", "models_claim": "disk", "models_path": "/m"},
    }
    (service,) = objects("kuberay", tables)
    cluster = service["spec"]["rayClusterConfig"]
    pods = [
        by_name(tables)["Deployment/penstock-servers"]["spec"]["template"]["spec"],
        cluster["workerGroupSpecs"][0]["template"]["spec"],
    ]
    for pod in pods:
        (volume,) = pod["volumes"]
        claim = {"claimName": "disk", "readOnly": True}
        assert volume["persistentVolumeClaim"] == claim
        (mount,) = pod["containers"][0]["volumeMounts"]
        assert mount == {"name": volume["name"], "mountPath": "/m", "readOnly": True}
    assert "volumes" not in objects("kubernetes", IMAGE)[0]["spec"]["template"]["spec"]


def test_the_scaler_follows_sequences_between_least_and_most() -> None:
    tables = {
        **IMAGE,
        "replicas": {"min": 2, "max": 5, "cpus": 1},
        "autoscaling": {"sequences": 2.5, "slo": ["ttft:1s"], "up_after": 7.5},
    }
    found = by_name(tables)
    # Or each `kubectl apply` would undo what the scaler did.
    assert "replicas" not in found["Deployment/penstock-servers"]["spec"]
    scaler = found["HorizontalPodAutoscaler/penstock-servers"]["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 5)
    targets = {
        each["pods"]["metric"]["name"]: each["pods"]["target"]["averageValue"]
        for each in scaler["metrics"]
    }
    assert targets == {
        "penstock_num_requests_running": "2500m",
        "penstock_num_requests_waiting": "1",
    }
    assert scaler["behavior"]["scaleUp"]["stabilizationWindowSeconds"] == 8
    text = manifests.text("kubernetes", DeployConfig.of(tables))
    assert "servers count autoscaling.slo, and nothing follows it" in text
    assert not any("Autoscaler" in name for name in by_name(IMAGE))


@pytest.mark.parametrize("wait", [0, 90])
def test_the_router_has_the_options_of_the_routing(wait: float) -> None:
    from penstock.cli.route import add_arguments

    routing = {
        **{"port": 8123, "policy": "threshold", "decode_tokens": 7, "lost": 0.5, "wait": wait},
        "uncached": 1.5,
        **{"request_timeout": 33.5, "routers": 3, "access_log": False},
    }
    deployment = by_name({**IMAGE, "routing": routing})["Deployment/penstock-router"]
    assert deployment["spec"]["replicas"] == 3
    command = container(deployment)["command"]
    assert command[:2] == ["penstock", "route"]
    parser = Parser("penstock route", "")
    add_arguments(parser)
    args = parser.parse(command[2:])
    assert args.urls == ["http://penstock-servers:8000"]
    assert (args.resolve, args.host, args.port, args.no_access_log) == (True, "0.0.0.0", 8123, True)
    assert (args.policy, args.decode_tokens, args.lost) == ("threshold", 7, 0.5)
    assert args.uncached == 1.5
    assert args.request_timeout == 33.5
    assert (args.wait, args.resume_timeout) == ((wait, wait) if wait else (None, None))
