"""Builds `deploy/` as kustomize does, with the features that are used there. Anything else is refused.

Names of generated ConfigMaps get no suffix here. Where `kubectl` is installed, a test compares the two.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"

OVERLAYS: Final = ("postgres", "monitored", "autoscaled", "sqlite-single")

Manifest: TypeAlias = dict[str, Any]
Name: TypeAlias = tuple[str, str]  # kind, name
Manifests: TypeAlias = dict[Name, Manifest]


def build(folder: Path) -> Manifests:
    """The objects of a kustomization, by kind and name."""
    file = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert file.pop("apiVersion") == f"kustomize.config.k8s.io/{_VERSIONS[file['kind']]}"
    return _apply(folder, file, {})


_VERSIONS: Final = {"Kustomization": "v1beta1", "Component": "v1alpha1"}


def _apply(folder: Path, file: Manifest, objects: Manifests) -> Manifests:
    """The objects so far, and what the file adds and changes; in kustomize's order."""
    unknown = file.keys() - _STEPS.keys() - {"kind"}
    assert not unknown, f"{folder}: {unknown}"
    for key, step in _STEPS.items():
        for entry in file.get(key, ()):
            step(folder, entry, objects)
    return objects


def _add_resource(folder: Path, entry: str, objects: Manifests) -> None:
    path = (folder / entry).resolve()
    found = build(path) if path.is_dir() else _named(yaml.safe_load_all(path.read_text()))
    assert not found.keys() & objects.keys(), entry
    objects |= found


def _named(found: Iterator[Manifest]) -> Manifests:
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def _add_component(folder: Path, entry: str, objects: Manifests) -> None:
    path = (folder / entry).resolve()
    file = yaml.safe_load((path / "kustomization.yaml").read_text())
    assert (file.pop("apiVersion"), file["kind"]) == ("kustomize.config.k8s.io/v1alpha1", "Component")
    _apply(path, file, objects)


def _generate(folder: Path, entry: Manifest, objects: Manifests) -> None:
    """A ConfigMap of literals and files; `behavior: merge` adds to the one that is there."""
    assert entry.keys() <= {"name", "literals", "files", "behavior", "options"}, folder
    data = dict(literal.split("=", 1) for literal in entry.get("literals", []))
    data |= {file: (folder / file).read_text() for file in entry.get("files", [])}
    name = ("ConfigMap", entry["name"])
    assert (name in objects) == (entry.get("behavior") == "merge"), entry["name"]
    new = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": entry["name"]}, "data": {}}
    objects.setdefault(name, new)["data"] |= data
    options = entry.get("options", {})
    assert options.keys() <= {"disableNameSuffixHash", "labels"}, folder
    if "labels" in options:
        _add_labels(objects[name], options["labels"])


def _patch(folder: Path, entry: Manifest, objects: Manifests) -> None:
    """The operations of RFC 6902, on the one object that is meant."""
    assert entry.keys() == {"target", "patch"}, folder
    target = objects[entry["target"]["kind"], entry["target"]["name"]]
    for operation in yaml.safe_load(entry["patch"]):
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place: Any = target
        for part in parents:
            place = place[int(part) if isinstance(place, list) else part]
        _OPERATIONS[operation["op"]](place, last, operation.get("value"))


def _add_value(place: Any, last: str, value: Any) -> None:
    if isinstance(place, list):
        place.insert(len(place) if last == "-" else int(last), value)
    else:
        place[last] = value


def _replace_value(place: Any, last: str, value: Any) -> None:
    key: Any = int(last) if isinstance(place, list) else last
    assert place[key] is not None
    place[key] = value


def _remove_value(place: Any, last: str, _: Any) -> None:
    del place[int(last) if isinstance(place, list) else last]


_OPERATIONS: Final = {"add": _add_value, "replace": _replace_value, "remove": _remove_value}


def _label(folder: Path, entry: Manifest, objects: Manifests) -> None:
    """Labels of every object, and with `includeTemplates` of its pods; no selectors."""
    assert entry.keys() <= {"pairs", "includeTemplates"}, folder
    for each in objects.values():
        _add_labels(each, entry["pairs"])
        if entry.get("includeTemplates") and "template" in each.get("spec", {}):
            _add_labels(each["spec"]["template"], entry["pairs"])


def _add_labels(labelled: Manifest, pairs: Mapping[str, str]) -> None:
    labelled.setdefault("metadata", {}).setdefault("labels", {}).update(pairs)


def _set_image(folder: Path, entry: Manifest, objects: Manifests) -> None:
    assert entry.keys() == {"name", "newTag"}, folder
    for container in (container for each in objects.values() for container in containers(each)):
        image, _, _ = container["image"].partition(":")
        if image == entry["name"]:
            container["image"] = f"{image}:{entry['newTag']}"


def containers(manifest: Manifest) -> Sequence[Manifest]:
    """The containers of a workload."""
    found: Sequence[Manifest] = manifest.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    return found


_STEPS: Final[dict[str, Callable[[Path, Any, Manifests], None]]] = {
    "resources": _add_resource,
    "configMapGenerator": _generate,
    "components": _add_component,
    "patches": _patch,
    "labels": _label,
    "images": _set_image,
}


def build_by_kubectl(folder: Path) -> Manifests:
    """The same by kubectl, without the suffixes of generated names."""
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, check=True)
    (generated,) = set(re.findall(r"affinity-workers-[a-z0-9]{10}\b", done.stdout))
    return _named(yaml.safe_load_all(done.stdout.replace(generated, "affinity-workers")))


def copy(manifests: Manifests) -> Manifests:
    """One that a test may change."""
    return deepcopy(manifests)
