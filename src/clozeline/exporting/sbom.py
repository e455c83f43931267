"""Bill of materials of a package, in CycloneDX 1.6: its files, its base model, the Python packages that serve it.

It has no date and no serial number, so the same export writes the same bytes.
"""

import json
from dataclasses import dataclass
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from huggingface_hub import ModelCard
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from clozeline.records.package import CARD, SBOM, Manifest, record_of

_OURS: Final = "clozeline"

_Fields = dict[str, Any]


@dataclass(frozen=True)
class _Package:
    """An installed Python package, and the names of those that it requires here."""

    metadata: PackageMetadata
    needs: set[str]


def write_sbom(folder: Path, name: str, draft: Manifest) -> None:
    """Write the bill of materials of the package in `folder`, called `name`, whose other files are all there."""
    files = [
        {"type": "file", "name": path.name, "hashes": [{"alg": "SHA-256", "content": record_of(path).sha256}]}
        for path in sorted(folder.iterdir())
    ]
    model = _model(name, draft, ModelCard.load(folder / CARD, ignore_metadata_errors=True).data.to_dict())
    packages = _installed_with(_OURS)
    described = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": model | {"components": files}},
        "components": [_library(package.metadata) | {"bom-ref": ref} for ref, package in packages.items()],
        "dependencies": [
            {"ref": model["bom-ref"], "dependsOn": [_OURS]},
            *({"ref": ref, "dependsOn": sorted(package.needs & packages.keys())} for ref, package in packages.items()),
        ],
    }
    (folder / SBOM).write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _model(name: str, draft: Manifest, stated: _Fields) -> _Fields:
    """Return the component for the model; a licence or a base model only if the model card states it."""
    licence = stated.get("license_name") or stated.get("license")
    licensed = {"licenses": [{"license": {"name": str(licence)}}]} if licence else {}
    base = stated.get("base_model") or ()
    names = [base] if isinstance(base, str) else base
    kind = {"type": "machine-learning-model"}
    ancestors = [kind | {"name": str(ancestor)} | licensed for ancestor in names]
    return (
        kind
        | {"bom-ref": f"model {name}", "name": name}
        | licensed
        | ({"pedigree": {"ancestors": ancestors}} if ancestors else {})
        | {"modelCard": {"modelParameters": {"task": draft.task, "architectureFamily": draft.family}}}
    )


def _library(found: PackageMetadata) -> _Fields:
    name = canonicalize_name(found["Name"])
    # No index has ours: a registered model carries its wheel.
    address = {} if name == _OURS else {"purl": f"pkg:pypi/{name}@{found['Version']}"}
    return {"type": "library", "name": found["Name"], "version": found["Version"]} | address | _licences(found)


def _licences(found: PackageMetadata) -> _Fields:
    """Return what the metadata of a package states: an SPDX expression, or else names in words."""
    told = found.json
    if expression := told.get("license_expression"):
        return {"licenses": [{"expression": expression}]}
    classified = [line.rpartition(" :: ")[2] for line in told.get("classifier", ()) if line.startswith("License")]
    stated = str(told.get("license", "")).strip().partition("\n")[0]
    names = classified or ([stated] if stated else [])
    return {"licenses": [{"license": {"name": name}} for name in names]} if names else {}


def _installed_with(root: str) -> dict[str, _Package]:
    """Return `root` and every package that its installation brings along, by canonical name."""
    packages: dict[str, _Package] = {}
    waiting, seen = [Requirement(root)], set()
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        if (name, *asked.extras) in seen:
            continue
        seen.add((name, *asked.extras))
        try:
            installed = distribution(name)
        except PackageNotFoundError:  # removed by hand
            continue
        extras = {"", *asked.extras}
        needs = [one for one in map(Requirement, installed.requires or ()) if _applies(one, extras)]
        package = packages.setdefault(name, _Package(installed.metadata, set()))
        package.needs.update(canonicalize_name(one.name) for one in needs)
        waiting += needs
    return dict(sorted(packages.items()))


def _applies(asked: Requirement, extras: set[str]) -> bool:
    return asked.marker is None or any(asked.marker.evaluate({"extra": extra}) for extra in extras)
