"""The manifests of `deploy/`: valid for two versions of Kubernetes, consistent, and true of their worker."""

from __future__ import annotations

import re
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import kubernetes_validate  # type: ignore[import-untyped]
import psycopg
import pytest
from click.testing import CliRunner

from affinity import RuntimeOptions
from affinity.cli import main
from affinity.provider.postgres.migration import MIGRATIONS
from affinity.worker.options import ALL_ADDRESSES
from affinity.worker.worker import LEAVE_SECONDS
from tests.deploy.kustomize import DEPLOY, OVERLAYS, ROOT, Manifest, Manifests, build, build_by_kubectl, copy
from tests.deploy.pods import CONFIGURATION, WORKLOAD, Pod, environment, pod_template

KUBERNETES: Final = ("1.31", "1.37")
"""Versions whose schemas the manifests must fit: one that is still in use, and the latest."""

OWN_KINDS: Final = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): {"spec": {"selector", "endpoints"}},
    ("monitoring.coreos.com/v1", "PrometheusRule"): {"spec": {"groups"}},
    ("keda.sh/v1alpha1", "ScaledObject"): {
        "spec": {"scaleTargetRef", "pollingInterval", "minReplicaCount", "maxReplicaCount", "advanced", "triggers"}
    },
    ("keda.sh/v1alpha1", "TriggerAuthentication"): {"spec": {"secretTargetRef"}},
}
"""Kinds that operators bring: Kubernetes has no schema of them."""

SECRETS: Final = {("affinity-database", "url"): "postgresql://db/app"}

METRIC: Final = b"affinity_held_sessions"

SECONDS_TO_STOP: Final = 10.0
"""docs/run/deploy.md: to stop the lease renewer and release the name."""


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def manifests(overlay: str) -> Manifests:
    return build(DEPLOY / "overlays" / overlay)


def validate(manifest: Manifest) -> None:
    for version in KUBERNETES:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_all_objects_fit_the_schemas(manifests: Manifests) -> None:
    """Strictly: a field that the schema does not have is an error."""
    checked = 0
    for manifest in manifests.values():
        kind = (manifest["apiVersion"], manifest["kind"])
        if kind in OWN_KINDS:
            assert manifest["spec"].keys() <= OWN_KINDS[kind]["spec"], kind
        else:
            validate(manifest)
            checked += 1
    assert checked >= 5


@pytest.mark.parametrize("field", ["replica", "minReadySecond"])
def test_a_misspelt_field_is_an_error(field: str) -> None:
    changed = copy(build(DEPLOY / "base"))
    changed[WORKLOAD]["spec"][field] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(changed[WORKLOAD])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_makes_the_same_of_it(overlay: str, manifests: Manifests) -> None:
    assert build_by_kubectl(DEPLOY / "overlays" / overlay) == manifests


# --- the objects among each other


def test_selectors_select_the_pods(manifests: Manifests) -> None:
    template = manifests[WORKLOAD]["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    selectors = [
        manifests[WORKLOAD]["spec"]["selector"]["matchLabels"],
        manifests["Service", "affinity-workers"]["spec"]["selector"],
        manifests["PodDisruptionBudget", "affinity-workers"]["spec"]["selector"]["matchLabels"],
        manifests["NetworkPolicy", "affinity-workers"]["spec"]["podSelector"]["matchLabels"],
        *(each["labelSelector"]["matchLabels"] for each in template["spec"].get("topologySpreadConstraints", [])),
    ]
    for selector in selectors:
        assert selector, "it would select everything"
        assert selector.items() <= labels
    if monitor := manifests.get(("ServiceMonitor", "affinity-workers")):
        service = manifests["Service", "affinity-workers"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert {each["port"] for each in monitor["spec"]["endpoints"]} <= {p["name"] for p in service["spec"]["ports"]}


def test_all_objects_have_the_recommended_labels(manifests: Manifests) -> None:
    for (kind, _), manifest in manifests.items():
        labels = manifest["metadata"]["labels"]
        assert {"app.kubernetes.io/part-of", "app.kubernetes.io/managed-by"} <= labels.keys(), kind
        if kind != "ConfigMap":
            assert {"app.kubernetes.io/name", "app.kubernetes.io/component"} <= labels.keys(), kind
            assert manifest["metadata"]["annotations"]["kubernetes.io/description"], kind


def test_the_budget_lets_nodes_be_drained_and_keeps_workers(manifests: Manifests) -> None:
    """One worker at a time may go; more than one is there, unless there is to be only one."""
    budget = manifests["PodDisruptionBudget", "affinity-workers"]["spec"]
    assert (budget["maxUnavailable"], "minAvailable" in budget) == (1, False)
    least = least_replicas(manifests)
    assert least > budget["maxUnavailable"] or "volumeClaimTemplates" in manifests[WORKLOAD]["spec"]


def least_replicas(manifests: Manifests) -> int:
    scaled = manifests.get(("ScaledObject", "affinity-workers"))
    found: int = scaled["spec"]["minReplicaCount"] if scaled else manifests[WORKLOAD]["spec"]["replicas"]
    assert (scaled is None) == ("replicas" in manifests[WORKLOAD]["spec"]), "one of them says how many"
    return found


def test_what_is_mounted_is_there_and_only_that_is_written(manifests: Manifests) -> None:
    spec = pod_template(manifests)
    (container,) = spec["containers"]
    volumes = {each["name"]: each for each in spec["volumes"]}
    claims = {each["metadata"]["name"] for each in manifests[WORKLOAD]["spec"].get("volumeClaimTemplates", [])}
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts.keys() == volumes.keys() | claims
    assert "emptyDir" in volumes["tmp"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    local = manifests[WORKLOAD]["spec"]["template"]["metadata"]["annotations"]
    assert local["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"] == "tmp"
    url = environment(manifests, "pod-0", SECRETS)["AFFINITY_URL"]
    if url.startswith("sqlite:///"):
        assert str(Path(url.removeprefix("sqlite:///")).parent) in mounts.values()


@pytest.mark.parametrize("overlay", ["postgres", "sqlite-single"])
def test_these_overlays_need_no_operator(overlay: str, manifests: Manifests) -> None:
    assert {(each["apiVersion"], each["kind"]) for each in manifests.values()}.isdisjoint(OWN_KINDS), overlay


def test_the_context_of_the_image_has_what_is_copied_and_no_more() -> None:
    """`.dockerignore` excludes all but the sources of COPY."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    copied = {source for line in lines for source in line.split()}
    ignored, *rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] != "#"]
    assert ignored == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied
    assert all((ROOT / source).exists() for source in copied)


def test_the_image_s_user_may_run(manifests: Manifests) -> None:
    (uid,) = re.findall(r"--uid (\d+)", (DEPLOY / "Dockerfile").read_text())
    security = pod_template(manifests)["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, int(uid))


def test_the_network_policy_lets_through_what_is_needed(manifests: Manifests) -> None:
    policy = manifests["NetworkPolicy", "affinity-workers"]["spec"]
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    dns, _, *_ = policy["egress"]
    assert [port["port"] for port in dns["ports"] if port["protocol"] == "UDP"] == [53, 5353]
    assert "to" not in dns, "where a cluster's DNS is differs"
    assert (5432 in ports) == environment(manifests, "pod-0", SECRETS)["AFFINITY_URL"].startswith("postgresql")
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == ["metrics"]


# --- the worker


def test_the_environment_is_that_of_a_worker(manifests: Manifests) -> None:
    """Each variable is an option, or the URL; and the page of options lists it."""
    variables = environment(manifests, "affinity-workers-7", SECRETS)
    options = RuntimeOptions.from_environment(variables)
    assert (options.worker_node_id, options.metrics_host) == ("affinity-workers-7", ALL_ADDRESSES)
    table = (ROOT / "docs" / "run" / "options.md").read_text()
    known = {f"AFFINITY_{each.name.upper()}": each for each in RuntimeOptions.describe()}
    for variable in variables.keys() - {"AFFINITY_URL"}:
        assert f"| `{known[variable].name}` |" in table
    assert (options.placement == "pack") == (("ScaledObject", "affinity-workers") in manifests)


def test_the_grace_period_is_longer_than_the_longest_drain(manifests: Manifests) -> None:
    options = RuntimeOptions.from_environment(environment(manifests, "pod-0", SECRETS))
    longest = options.drain_timeout + options.worker_lease_timeout + max(SECONDS_TO_STOP, LEAVE_SECONDS)
    spec = pod_template(manifests)
    *command, waits = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["affinity", "stop", "1", "--force", "--timeout"]
    assert float(waits) >= longest + 30.0  # a dispose of the application
    assert spec["terminationGracePeriodSeconds"] >= float(waits) + 5.0  # until the hook has begun, and for SIGTERM


def test_the_pod_s_memory_is_enough_for_its_options(manifests: Manifests) -> None:
    """What options bound in bytes fits below the limit."""
    options = RuntimeOptions.from_environment(environment(manifests, "pod-0", SECRETS))
    (container,) = pod_template(manifests)["containers"]
    resources = container["resources"]
    limit = int(re.fullmatch(r"(\d+)Mi", resources["limits"]["memory"])[1]) * 2**20  # type: ignore[index]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert "cpu" not in resources["limits"]
    assert options.max_outstanding_bytes + options.instance_cache_bytes < limit


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
        return number


@pytest.fixture
def pod(manifests: Manifests, tmp_path: Path, port: int) -> Iterator[Pod]:
    """A pod with the command of the image's example, on an SQLite file."""
    url = f"sqlite:///{tmp_path / 'affinity.db'}"
    different = {"AFFINITY_METRICS_PORT": str(port)}
    if "volumeClaimTemplates" in manifests[WORKLOAD]["spec"]:
        different["AFFINITY_URL"] = url
    secrets = {("affinity-database", "url"): url}
    pod = Pod(manifests, "affinity-workers-0", tmp_path / "log", app="examples.hello:app", secrets=secrets, **different)
    try:
        yield pod
    finally:
        pod.kill()


@pytest.mark.slow_cases("monitored|autoscaled")
def test_the_probes_are_answered(manifests: Manifests, pod: Pod, port: int) -> None:
    """By a worker of the manifest's own command and environment, on the port of that name, within the startup probe's
    time; and the hook ends it with exit code 0.
    """
    (container,) = pod_template(manifests)["containers"]
    (metrics,) = container["ports"]
    assert manifests[CONFIGURATION]["data"]["AFFINITY_METRICS_PORT"] == str(metrics["containerPort"])
    assert container["args"] == ["worker", "hello:app"]
    startup = container["startupProbe"]
    until = time.monotonic() + startup["periodSeconds"] * startup["failureThreshold"]
    for probe in (startup, container["livenessProbe"]):
        assert probe["httpGet"]["port"] == metrics["name"]
        assert METRIC not in answer(f"http://127.0.0.1:{port}{probe['httpGet']['path']}", until)  # on all other paths
    if monitor := manifests.get(("ServiceMonitor", "affinity-workers")):
        (endpoint,) = monitor["spec"]["endpoints"]
        assert METRIC in answer(f"http://127.0.0.1:{port}{endpoint['path']}", until)
    while "running app" not in pod.log():
        assert time.monotonic() < until, pod.log()
        time.sleep(0.1)
    assert pod.end_stop(pod.begin_stop()) == 0, pod.log()


def answer(url: str, until: float) -> bytes:
    """The body, of a status that says yes; asked again until it is connected."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 -- a port of our own
                body: bytes = response.read()
                return body
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


# --- the autoscaler


@pytest.fixture
def autoscaled() -> Manifests:
    return build(DEPLOY / "overlays" / "autoscaled")


def test_the_scaled_object_scales_the_workers(autoscaled: Manifests) -> None:
    scaled = autoscaled["ScaledObject", "affinity-workers"]["spec"]
    assert (scaled["scaleTargetRef"]["kind"], scaled["scaleTargetRef"]["name"]) == WORKLOAD
    assert 1 <= scaled["minReplicaCount"] <= scaled["maxReplicaCount"]
    (trigger,) = scaled["triggers"]
    assert ("TriggerAuthentication", trigger["authenticationRef"]["name"]) in autoscaled
    # The number of pods is the number that the query returns.
    assert (trigger["type"], trigger["metricType"], trigger["metadata"]["targetQueryValue"]) == (
        "postgresql", "AverageValue", "1"
    )  # fmt: skip
    down = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    options = RuntimeOptions.from_environment(environment(autoscaled, "pod-0", SECRETS))
    assert down["stabilizationWindowSeconds"] >= options.session_lock_timeout


def test_the_query_is_answered_for_the_autoscaler_s_role(autoscaled: Manifests, postgres_database: str) -> None:
    """The commands of the overlay's comment, and then its query under that role."""
    (trigger,) = autoscaled["ScaledObject", "affinity-workers"]["spec"]["triggers"]
    text = (DEPLOY / "overlays" / "autoscaled" / "kustomization.yaml").read_text()
    assert "affinity migrate --grant-scaler affinity_scaler --url" in text
    with psycopg.connect(postgres_database, autocommit=True) as owner:
        owner.execute("CREATE ROLE affinity_scaler LOGIN")
        try:
            done = CliRunner().invoke(
                main, ["migrate", "--grant-scaler", "affinity_scaler", "--json", "--url", postgres_database]
            )
            assert done.exit_code == 0, done.output
            assert f'"to": {len(MIGRATIONS)}' in done.output
            owner.execute("SET ROLE affinity_scaler")
            assert owner.execute(trigger["metadata"]["query"]).fetchall() == [(0,)]
            owner.execute("RESET ROLE")
        finally:
            owner.execute("DROP OWNED BY affinity_scaler")
            owner.execute("DROP ROLE affinity_scaler")
