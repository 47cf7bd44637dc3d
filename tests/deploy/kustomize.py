"""The part of Kustomize that our manifests use, so that tests need no `kubectl` to render them.

A test compares the result with that of `kubectl kustomize` where it is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]

MERGE_KEYS = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}
"""The field that identifies a list's items, as in the Kubernetes API. Other lists are replaced."""


def render(folder: Path) -> list[Resource]:
    """Return the resources of a folder with a kustomization, in the order of its files.

    Names of generated config maps have no hash. A patch whose target no resource matches changes
    nothing.
    """
    file: Resource = yaml.safe_load((folder / "kustomization.yaml").read_text())
    resources = [
        resource for name in file.get("resources", ()) for resource in _read(folder / name)
    ]
    for name in file.get("components", ()):
        component = yaml.safe_load((folder / name / "kustomization.yaml").read_text())
        for part in component.get("resources", ()):
            resources += _read(folder / name / part)
        _patch(resources, component)
    for generated in file.get("configMapGenerator", ()):
        data = {name: (folder / name).read_text() for name in generated["files"]}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "data": data}
        config_map["metadata"] = {"name": generated["name"]}
        resources.append(config_map)
    _patch(resources, file)
    for image in file.get("images", ()):
        _set_image(resources, image)
    return resources


def _set_image(resources: list[Resource], image: Resource) -> None:
    """Replace an image's name and tag in all deployments."""
    for resource in resources:
        if resource["kind"] == "Deployment":
            for container in resource["spec"]["template"]["spec"]["containers"]:
                if container["image"].partition(":")[0] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"


def _read(path: Path) -> Iterator[Resource]:
    if path.is_dir():
        yield from render(path)
    else:
        yield from yaml.safe_load_all(path.read_text())


def _key(resource: Resource) -> tuple[str, str]:
    return resource["kind"], resource["metadata"]["name"]


def _patch(resources: list[Resource], file: Resource) -> None:
    by_key = {_key(resource): resource for resource in resources}
    for entry in file.get("patches", ()):
        patch = yaml.safe_load(entry["patch"])
        if isinstance(patch, dict):
            _merge(by_key[_key(patch)], patch)
            continue
        target = by_key.get((entry["target"]["kind"], entry["target"]["name"]))
        if target is not None:
            for operation in patch:
                _append(target, operation)


def _append(target: Resource, operation: Resource) -> None:
    """Append to a list as a JSON Patch does; manifests use no other operation."""
    *path, name, end = operation["path"].strip("/").split("/")
    assert (operation["op"], end) == ("add", "-"), operation
    for part in path:
        target = target[part]
    target[name].append(operation["value"])


def _merge(target: Resource, patch: Resource) -> None:
    """Merge as in Kubernetes' strategic merge patches, in place."""
    for name, value in patch.items():
        old, key = target.get(name), MERGE_KEYS.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value)
        elif isinstance(old, list) and key is not None:
            items = {item[key]: item for item in old}
            added = [item for item in value if item[key] not in items]
            for item in value:
                if item.get("$patch") == "delete":
                    old.remove(items[item[key]])
                elif item[key] in items:
                    _merge(items[item[key]], item)
            target[name] = [*added, *old]
        else:
            target[name] = value
