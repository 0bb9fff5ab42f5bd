"""The console in `deploy/`: manifests whose command, probes and login are those of the console; Compose's file."""

from __future__ import annotations

import re
from typing import Any, Final

import click
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from affinity.cli import main
from tests.deploy.kustomize import DEPLOY, Manifests, build, containers

NAME: Final = "affinity-console"


@pytest.fixture
def manifests() -> Manifests:
    return build(DEPLOY / "overlays" / "console")


def options_of(arguments: list[str]) -> dict[str, Any]:
    """The options of ``affinity console``, which refuses a word that is none."""
    name, *rest = arguments
    command = main.get_command(click.Context(main), name)
    assert command is not None
    with command.make_context(name, rest) as context:
        return context.params


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_all_objects_fit_the_schemas(manifests: Manifests, version: str) -> None:
    assert {kind for kind, _ in manifests} == {"Deployment", "Service", "NetworkPolicy"}
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)
        labels = manifest["metadata"]["labels"]
        assert {f"app.kubernetes.io/{name}" for name in ("name", "component", "part-of", "managed-by")} <= labels.keys()
        assert manifest["metadata"]["annotations"]["kubernetes.io/description"]


def test_selectors_select_the_pods_and_no_workers(manifests: Manifests) -> None:
    deployment = manifests["Deployment", NAME]["spec"]
    labels = deployment["template"]["metadata"]["labels"].items()
    for selector in (
        deployment["selector"]["matchLabels"],
        manifests["Service", NAME]["spec"]["selector"],
        manifests["NetworkPolicy", NAME]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector["app.kubernetes.io/component"] == "console"
        assert selector.items() <= labels
    worker = build(DEPLOY / "base")["Service", "affinity-workers"]["spec"]["selector"]
    assert not worker.items() <= dict(labels).items()


def test_the_command_is_that_of_a_console_behind_a_proxy(manifests: Manifests) -> None:
    """On all addresses of the pod, on the port of that name; it only reads; probes have no login."""
    (container,) = containers(manifests["Deployment", NAME])
    options = options_of(container["args"])
    (port,) = container["ports"]
    assert (options["port"], options["host"], options["actions"]) == (port["containerPort"], "0.0.0.0", ())  # noqa: S104
    assert options["trust_header"]
    assert options["proxies"]
    assert options["hosts"]
    (variable,) = container["env"]
    assert variable["name"] == "AFFINITY_URL"
    assert variable["valueFrom"]["secretKeyRef"]["name"] == "affinity-console-database"
    paths = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert [probe["path"] for probe in paths.values()] == ["/live", "/live", "/ready"]
    assert {probe["port"] for probe in paths.values()} == {port["name"]}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert manifests["Service", NAME]["spec"]["ports"][0]["targetPort"] == port["name"]


def test_the_image_has_what_the_console_needs() -> None:
    """Its packages are compiled with the extra."""
    text = (DEPLOY / "requirements.txt").read_text()
    assert "--extra console" in text
    assert {"jinja2", "starlette", "uvicorn"} <= {*re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE)}


def test_the_file_of_compose() -> None:
    """Each command is one of affinity; the console has a token, a role that reads, and a port of this machine only."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert services.keys() == {"database", "migrate", "worker", "console"}
    options = options_of(services["console"]["command"])
    assert {"localhost", "127.0.0.1"} == {*options["hosts"]}
    assert "AFFINITY_CONSOLE_TOKEN" in services["console"]["environment"]
    assert services["console"]["ports"] == [f"127.0.0.1:{options['port']}:{options['port']}"]
    reader = options_of(services["migrate"]["command"])["readers"]
    assert [f"postgresql://{name}:" in services["console"]["environment"]["AFFINITY_URL"] for name in reader] == [True]
