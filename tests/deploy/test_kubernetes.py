"""The Kubernetes manifests: by their schemas, and by what they say of each other."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from router_service.accounts.access import Access
from router_service.core.artifact import SHIPPED, Artifact
from router_service.requests.pool import Pool
from router_service.settings import Settings, load_settings
from router_service.telemetry.metrics import Metrics
from tests.clients.installed import installed
from tests.deploy.dockerfile import stages

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
VALIDATOR = Path(__file__).parent / "node" / "validate.mjs"
KUBERNETES = "1.31"
"""The oldest version that all of these are for."""
OPERATORS = {"ServiceMonitor", "PrometheusRule"}
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())

Resource = dict[str, Any]


def read(name: str) -> Resource:
    """Return the resource of a file."""
    resource: Resource = yaml.safe_load((FOLDER / name).read_text())
    return resource


RESOURCES = {resource["kind"]: resource for resource in map(read, KUSTOMIZATION["resources"])}
POD: dict[str, Any] = RESOURCES["Deployment"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
LABELS: Mapping[str, str] = POD["metadata"]["labels"]
SECRET: Mapping[str, str] = read("examples/secret.yaml")["stringData"]


REDIS: dict[str, Resource] = {
    resource["kind"]: resource
    for resource in yaml.safe_load_all((FOLDER / "examples/redis.yaml").read_text())
}


def gateway_settings() -> Settings:
    """Return what the gateways read, with the variables that the pods have."""
    return load_settings(FOLDER / "gateway.yaml", {name: f"value of {name}" for name in SECRET})


@pytest.mark.parametrize("kind", sorted(RESOURCES.keys() - OPERATORS))
def test_a_resource_fits_its_schema(kind: str) -> None:
    """Kubernetes' own schemas accept it, and know all of its fields."""
    kubernetes_validate.validate(RESOURCES[kind], KUBERNETES, strict=True)


@pytest.mark.parametrize("name", ["examples/secret.yaml", "examples/publish.yaml"])
def test_an_example_fits_its_schema(name: str) -> None:
    """What is to be copied is valid too."""
    kubernetes_validate.validate(read(name), KUBERNETES, strict=True)


@pytest.mark.parametrize("kind", sorted(REDIS))
def test_example_redis_fits_its_schema(kind: str) -> None:
    """Each resource of the Redis example is valid."""
    kubernetes_validate.validate(REDIS[kind], KUBERNETES, strict=True)


def test_example_redis_is_for_gateways_with_the_password() -> None:
    """It starts as compose's does, has the secret's password, and only gateways reach it."""
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
    assert reference["name"] == read("examples/secret.yaml")["metadata"]["name"]
    assert variable["name"] == reference["key"]
    assert reference["key"] in SECRET
    labels = pod["metadata"]["labels"]
    policy = REDIS["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == REDIS["Service"]["spec"]["selector"] == labels
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": LABELS}}]
    let_out = RESOURCES["NetworkPolicy"]["spec"]["egress"]
    assert {"podSelector": {"matchLabels": labels}} in [to for rule in let_out for to in rule["to"]]


def test_the_operators_resources_fit_their_schemas(request: pytest.FixtureRequest) -> None:
    """The Prometheus operator's types accept what is for it, and refuse what is not."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("needs node and npm")
    assert request.config.cache is not None
    command = (npm, *"install --no-save --no-audit --no-fund --no-package-lock".split())
    folder = installed(request.config.cache, VALIDATOR.with_name("package.json"), command)
    script = Path(shutil.copy(VALIDATOR, folder))

    def accepts(resources: list[Resource]) -> bool:
        text = json.dumps(resources).encode()
        done = subprocess.run([node, script], input=text, capture_output=True, check=False)
        return done.returncode == 0

    good = [RESOURCES[kind] for kind in sorted(OPERATORS)]
    assert accepts(good)
    assert not accepts([{**good[1], "spec": {"selector": {}, "endpoints": [{"port": 80}]}}])


def test_every_file_is_applied() -> None:
    """No manifest is forgotten, and none is named that is not there."""
    written = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    assert written == {*KUSTOMIZATION["resources"], *generated["files"]}
    assert len(RESOURCES) == len(KUSTOMIZATION["resources"])


def test_selectors_find_the_pods() -> None:
    """Whatever selects the gateways' pods, or their service, selects by labels that they have."""
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
    monitored = specs["ServiceMonitor"]["selector"]["matchLabels"]
    assert monitored.items() <= RESOURCES["Service"]["metadata"]["labels"].items()
    scaled = specs["HorizontalPodAutoscaler"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == (
        "Deployment",
        RESOURCES["Deployment"]["metadata"]["name"],
    )
    assert POD["spec"]["serviceAccountName"] == RESOURCES["ServiceAccount"]["metadata"]["name"]


def test_ports_go_by_name_to_the_gateways() -> None:
    """Service, probes, monitor and policy name the port that the image listens on."""
    (port,) = CONTAINER["ports"]
    assert str(port["containerPort"]) == stages(ROOT / "Dockerfile")["runtime"].only("EXPOSE")
    (served,) = RESOURCES["Service"]["spec"]["ports"]
    (scraped,) = RESOURCES["ServiceMonitor"]["spec"]["endpoints"]
    (let_in,) = RESOURCES["NetworkPolicy"]["spec"]["ingress"][0]["ports"]
    probes = [CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    named = [served["targetPort"], let_in["port"], *(probe["port"] for probe in probes)]
    assert set(named) == {port["name"]}
    assert scraped["port"] == served["name"]
    assert {probe["path"] for probe in probes} == {"/healthz", "/readyz"}


def test_pods_are_restricted() -> None:
    """The pods fit the restricted profile of the Pod Security Standards, and have no token."""
    job = read("examples/publish.yaml")["spec"]["template"]["spec"]
    redis = REDIS["Deployment"]["spec"]["template"]["spec"]
    for pod in (POD["spec"], job, redis):
        assert pod["automountServiceAccountToken"] is False
        # `SWITCHCRAFT_PORT`, as Kubernetes would set it for the service, is no number.
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


def test_a_pod_has_the_time_to_drain() -> None:
    """Kubernetes waits longer than the gateway takes: its delay, its answers, and a little more."""
    server = gateway_settings().server
    needed_s = server.drain_delay_s + server.shutdown_timeout_s
    assert POD["spec"]["terminationGracePeriodSeconds"] >= needed_s + 5
    probe = CONTAINER["readinessProbe"]
    noticed_s = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert noticed_s < server.drain_delay_s


def test_the_configuration_is_read() -> None:
    """It fits the shipped artifact, has keys, and names no variable that the secret lacks."""
    text = (FOLDER / "gateway.yaml").read_text()
    assert set(re.findall(r"os\.environ/(\w+)", text)) <= SECRET.keys()
    settings = gateway_settings()
    assert Pool.build(settings, Artifact.load(SHIPPED).manifest).by_arm
    assert not settings.unsupported
    assert settings.keys.api
    assert settings.keys.admin
    assert settings.keys.metrics


def test_what_pods_refer_to_exists() -> None:
    """Config map, claim and secret are there by name; what is written is on a volume."""
    volumes = {volume["name"]: volume for volume in POD["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in CONTAINER["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == volumes.keys()
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    assert volumes["config"]["configMap"]["name"] == generated["name"]
    claim = RESOURCES["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim
    (variable,) = CONTAINER["env"]
    assert variable["value"] == "/etc/switchcraft/" + generated["files"][0]
    settings = gateway_settings()
    assert "readOnly" not in mounts[str(settings.decision_log.path)]
    assert mounts[str(settings.router.publication)]["readOnly"]
    assert stages(ROOT / "Dockerfile")["runtime"].variables()["HOME"] in mounts


def test_secrets_are_referred_to_alone() -> None:
    """Nothing that is applied has a secret's value; who refers to one names a documented key."""
    secret = read("examples/secret.yaml")["metadata"]["name"]
    assert set(SECRET.values()) == {""}
    assert CONTAINER["envFrom"] == [{"secretRef": {"name": secret}}]
    (endpoint,) = RESOURCES["ServiceMonitor"]["spec"]["endpoints"]
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["name"] == secret
    assert credentials["key"] in SECRET
    access = Access.from_settings(gateway_settings().keys)
    sent = f"value of {credentials['key']}".encode()
    assert access.scraper(sent)
    assert not access.caller(sent, needs_admin=False), "the key opens metrics only"
    assert "Secret" not in RESOURCES


def test_the_autoscalers_metric_exists() -> None:
    """The gateway has the series by which it is scaled, and the adapter's rule is for it."""
    pods, _ = RESOURCES["HorizontalPodAutoscaler"]["spec"]["metrics"]
    name = pods["pods"]["metric"]["name"]
    assert name in {metric.name for metric in Metrics().registry.collect()}
    (rule,) = read("examples/prometheus-adapter.yaml")["rules"]["custom"]
    assert rule["seriesQuery"].startswith(name + "{")
    target = int(pods["pods"]["target"]["averageValue"])
    assert target < gateway_settings().server.max_requests_in_flight


def test_the_rules_are_those_of_prometheus() -> None:
    """There is one source of the rules; `python deploy/kubernetes/build.py` takes it over."""
    source = (ROOT / "deploy/prometheus/rules.yaml").read_text()
    build = importlib.import_module("deploy.kubernetes.build")
    assert (FOLDER / "prometheusrule.yaml").read_text() == build.resource(source)
    assert RESOURCES["PrometheusRule"]["spec"] == yaml.safe_load(source)


def test_the_policy_lets_out_what_the_gateway_needs() -> None:
    """Names, Redis, providers and a collector can be reached; no address of the cloud's own."""
    rules = RESOURCES["NetworkPolicy"]["spec"]["egress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == {53, 6379, 4318, 443}
    blocks = rules[-1]["to"]
    assert "169.254.0.0/16" in blocks[0]["ipBlock"]["except"]
