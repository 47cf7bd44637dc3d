"""The Kubernetes manifests: their schemas and the references between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import kubernetes_validate
import pytest
import yaml

from deploy import alerts
from router_service.access.key import Permission
from router_service.access.keyring import KeyRing, permitted_listen_host
from router_service.artifact import SHIPPED, Artifact
from router_service.requests.pool import Pool
from router_service.serving.serve import sandbox_for
from router_service.settings import Settings, read_settings
from tests.deploy.dockerfile import stages
from tests.deploy.kustomize import Resource, render

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
KUBERNETES = "1.31"
"""Oldest Kubernetes version that all manifests support."""


def read(name: str) -> Resource:
    """Return the resource in a file."""
    resource: Resource = yaml.safe_load((FOLDER / name).read_text())
    return resource


def by_kind(resources: Iterable[Resource]) -> dict[str, Resource]:
    """Return the gateway's resources by kind."""
    named = (r for r in resources if r["metadata"]["name"] == "switchcraft")
    return {resource["kind"]: resource for resource in named}


OVERLAYS = ("base", "production", "gpu", "production-with-prometheus")
RENDERED = {name: render(FOLDER / name) for name in OVERLAYS}
RESOURCES = by_kind(RENDERED["production"])
MONITORED = by_kind(RENDERED["production-with-prometheus"])
POD: dict[str, Any] = RESOURCES["Deployment"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
LABELS: Mapping[str, str] = POD["metadata"]["labels"]
SECRET: Mapping[str, str] = read("production/secret.example.yaml")["stringData"]
PUBLISHING = read("components/shared-volume/publish-job.yaml")
REDIS: dict[str, Resource] = {
    resource["kind"]: resource
    for resource in RENDERED["production"]
    if resource["metadata"]["name"] == "redis"
}


def gateway_settings() -> Settings:
    """Return the settings that the gateways read in production, with the variables of the pods."""
    variables = {name: f"value of {name}" for name in SECRET}
    return read_settings(FOLDER / "production/gateway.yaml", environ=variables)


def test_base_starts_with_nothing_but_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base refers to nothing that it does not contain, and its gateway can be reached.

    It has no configuration, so that a sandbox answers. It has a key that cannot be guessed, without
    which it would listen inside its pod only.
    """
    resources = by_kind(RENDERED["base"])
    assert resources.keys() == {"ServiceAccount", "Service", "Deployment"}
    pod = resources["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "envFrom" not in container
    assert [volume.keys() - {"name"} for volume in pod["volumes"]] == [{"emptyDir"}]
    (variable,) = container["env"]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    monkeypatch.setenv(variable["name"], str(uuid4()))
    host = stages(ROOT / "Dockerfile")["runtime"].variables()["SWITCHCRAFT_HOST"]
    settings = read_settings(host=host)
    assert permitted_listen_host(settings) == host
    assert not settings.models
    with sandbox_for(settings) as sandbox:
        served = settings.model_copy(update=sandbox)
        assert served.models
        assert not KeyRing.from_settings(served.keys).is_open, "the gateway asks for the key"


@pytest.mark.parametrize("name", sorted(RENDERED.keys() - {"production-with-prometheus"}))
def test_cluster_needs_no_other_resource_types(name: str) -> None:
    """Kubernetes' own schemas know every resource and field, so no operator is needed."""
    for resource in RENDERED[name]:
        kubernetes_validate.validate(resource, KUBERNETES, strict=True)


def test_redis_accepts_only_gateways_with_the_password() -> None:
    """It starts as in the compose file, with the secret's password, and only gateways reach it."""
    pod = REDIS["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["redis"]
    assert container["image"] == compose["image"]
    assert container["command"] == [part.replace("$$", "$") for part in compose["command"]]
    assert container["readinessProbe"]["exec"]["command"][-1] == compose["healthcheck"]["test"][
        -1
    ].replace("$$", "$")
    context = pod["spec"]["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == compose["user"]
    (variable,) = container["env"]
    reference = variable["valueFrom"]["secretKeyRef"]
    assert reference["name"] == read("production/secret.example.yaml")["metadata"]["name"]
    assert variable["name"] == reference["key"]
    assert reference["key"] in SECRET
    variables = {entry["name"]: entry.get("value") for entry in CONTAINER["env"]}
    assert variables["SWITCHCRAFT_REDIS_URL"] == f"redis://:$({reference['key']})@redis:6379/0"
    names = list(variables)
    assert names.index(reference["key"]) < names.index("SWITCHCRAFT_REDIS_URL"), "it is expanded"
    labels = pod["metadata"]["labels"]
    policy = REDIS["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == REDIS["Service"]["spec"]["selector"] == labels
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": LABELS}}]
    let_out = RESOURCES["NetworkPolicy"]["spec"]["egress"]
    assert {"podSelector": {"matchLabels": labels}} in [to for rule in let_out for to in rule["to"]]


def test_selectors_match_the_pods() -> None:
    """Selectors of the gateways' pods or service use labels that these have."""
    specs = {kind: resource.get("spec", {}) for kind, resource in RESOURCES.items()}
    selectors = [
        specs["Deployment"]["selector"]["matchLabels"],
        specs["Service"]["selector"],
        specs["PodDisruptionBudget"]["selector"]["matchLabels"],
        specs["NetworkPolicy"]["podSelector"]["matchLabels"],
        *(
            spread["labelSelector"]["matchLabels"]
            for spread in POD["spec"]["topologySpreadConstraints"]
        ),
    ]
    assert all(selector.items() <= LABELS.items() for selector in selectors)
    monitored = MONITORED["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= RESOURCES["Service"]["metadata"]["labels"].items()
    scaled = specs["HorizontalPodAutoscaler"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == (
        "Deployment",
        RESOURCES["Deployment"]["metadata"]["name"],
    )
    assert POD["spec"]["serviceAccountName"] == RESOURCES["ServiceAccount"]["metadata"]["name"]


def test_pods_are_restricted() -> None:
    """The pods meet the restricted profile of the Pod Security Standards, and have no token."""
    job = PUBLISHING["spec"]["template"]["spec"]
    redis = REDIS["Deployment"]["spec"]["template"]["spec"]
    for pod in (POD["spec"], job, redis):
        assert pod["automountServiceAccountToken"] is False
        # Kubernetes would set `SWITCHCRAFT_PORT` for the service to a value that is not a number.
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
    user = stages(ROOT / "Dockerfile")["runtime"].only("USER").split(":")
    context = POD["spec"]["securityContext"]
    assert user == [str(context["runAsUser"]), str(context["runAsGroup"])]


def test_pods_have_time_to_drain() -> None:
    """Kubernetes waits longer than the gateway's delay and its answers together."""
    server = gateway_settings().server
    needed_s = server.drain_delay_s + server.shutdown_timeout_s
    assert POD["spec"]["terminationGracePeriodSeconds"] >= needed_s + 5
    probe = CONTAINER["readinessProbe"]
    noticed_s = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert noticed_s < server.drain_delay_s


def test_configuration_is_valid() -> None:
    """It fits the shipped artifact, has keys, and uses only variables that the secret has."""
    text = (FOLDER / "production/gateway.yaml").read_text()
    assert set(re.findall(r"os\.environ/(\w+)", text)) <= SECRET.keys()
    settings = gateway_settings()
    assert Pool.build(settings, Artifact.load(SHIPPED).manifest).by_arm
    assert not settings.unsupported
    assert settings.keys.api
    assert settings.keys.admin
    assert settings.keys.metrics


def test_pods_refer_to_existing_resources() -> None:
    """Config map, claim and secret exist by name; data is written to a volume."""
    volumes = {volume["name"]: volume for volume in POD["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in CONTAINER["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == volumes.keys()
    config_map = RESOURCES["ConfigMap"]
    assert volumes["config"]["configMap"]["name"] == config_map["metadata"]["name"]
    claim = RESOURCES["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim
    variables = {entry["name"]: entry.get("value") for entry in CONTAINER["env"]}
    assert variables["SWITCHCRAFT_CONFIG"] == "/etc/switchcraft/" + "".join(config_map["data"])
    settings = gateway_settings()
    assert "readOnly" not in mounts[str(settings.decision_log.path)]
    assert mounts[str(settings.router.publication)]["readOnly"]
    assert stages(ROOT / "Dockerfile")["runtime"].variables()["HOME"] in mounts


def test_manifests_contain_no_secret_values() -> None:
    """Manifests only refer to secrets, and the key of each reference is documented."""
    secret = read("production/secret.example.yaml")["metadata"]["name"]
    assert set(SECRET.values()) == {""}
    assert CONTAINER["envFrom"] == [{"secretRef": {"name": secret}}]
    (endpoint,) = MONITORED["ServiceMonitor"]["spec"]["endpoints"]
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["name"] == secret
    assert credentials["key"] in SECRET
    keys = KeyRing.from_settings(gateway_settings().keys)
    sent = f"value of {credentials['key']}".encode()
    assert keys.find(sent, Permission.METRICS)
    assert not keys.find(sent, Permission.CALL), "the key opens metrics only"
    assert "Secret" not in RESOURCES


def test_rules_equal_those_of_prometheus() -> None:
    """The rules have one source, which `python deploy/alerts.py` copies."""
    source = (ROOT / "deploy/prometheus/rules.yaml").read_text()
    assert alerts.RESOURCE.read_text() == alerts.resource(source)
    assert MONITORED["PrometheusRule"]["spec"] == yaml.safe_load(source)
