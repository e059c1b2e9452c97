"""Writes a CycloneDX bill of materials of leafbeam and what its extras bring, as installed here: `make sbom`."""

import argparse
import importlib.metadata
import re
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(extras: frozenset[str]) -> dict[str, set[str]]:
    """Canonical names of leafbeam and of all that it needs with these extras -> the names that each needs directly.

    Raises PackageNotFoundError for one that is not installed.
    """
    needs: dict[str, set[str]] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [("leafbeam", extra) for extra in ("", *sorted(extras))]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        direct = needs.setdefault(name, set())
        for line in importlib.metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            other = canonicalize_name(requirement.name)
            direct |= {other} - {name}
            waiting += [(other, extra) for extra in ("", *requirement.extras)]
    return needs


def component_of(name: str) -> Component:
    """A package as it is installed; its licence only where its metadata has an SPDX expression."""
    found = importlib.metadata.metadata(name)
    licenses = [LicenseFactory().make_from_string(found["License-Expression"])] if found["License-Expression"] else []
    kind = ComponentType.APPLICATION if name == "leafbeam" else ComponentType.LIBRARY
    url = PackageURL("pypi", None, name, found["Version"])
    component = Component(name=name, version=found["Version"], type=kind, purl=url, bom_ref=str(url), licenses=licenses)
    component.description = found["Summary"]
    return component


def bill_of(extras: frozenset[str]) -> str:
    """The document. Raises ValueError if it does not fit the schema."""
    needs = closure(extras)
    parts = {name: component_of(name) for name in needs}
    bom = Bom(components=[part for name, part in parts.items() if name != "leafbeam"])
    bom.metadata.component = parts["leafbeam"]
    for name, direct in needs.items():
        bom.register_dependency(parts[name], [parts[other] for other in sorted(direct)])
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1)
    if (problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)) is not None:
        raise ValueError(f"the document does not fit the schema: {problem}")
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="serve,otel")
    parser.add_argument("--out", type=Path, default=Path("dist/leafbeam.cdx.json"))
    options = parser.parse_args()
    text = bill_of(frozenset(re.findall(r"[\w-]+", options.extras)))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text, encoding="utf-8")
    print(f"{options.out}: {text.count(chr(34) + 'purl' + chr(34))} packages")
