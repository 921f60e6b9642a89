"""The software bill of materials, in CycloneDX's JSON: what requirements.lock puts into the image beside ourselves."""

import json
import re
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REQUIREMENT = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)(?: ; (?P<marker>[^\\]+?))?\s*\\?$", re.MULTILINE
)


def bill(lock: Path, version: str, made: datetime) -> dict[str, Any]:
    """A bill for this version. The same lock and time make the same bill, so a release can be made again."""
    text = lock.read_text("utf-8")
    components = [_component(each) for each in REQUIREMENT.finditer(text)]
    us = {"type": "application", "bom-ref": "ateplace", "name": "ateplace", "version": version}
    us |= {"purl": f"pkg:pypi/ateplace@{version}"}
    licence = [{"license": {"id": "Apache-2.0"}}]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, f'ateplace {version} {text}')}",
        "version": 1,
        "metadata": {
            "timestamp": made.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "component": {**us, "licenses": licence},
        },
        "components": components,
        "dependencies": [{"ref": "ateplace", "dependsOn": [each["bom-ref"] for each in components]}],
    }


def _component(found: "re.Match[str]") -> dict[str, Any]:
    """One requirement; the digests of its files, one for each platform, are in the lock."""
    name = re.sub(r"[-_.]+", "-", found["name"]).lower()
    purl = f"pkg:pypi/{name}@{found['version']}"
    made: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": found["version"], "purl": purl}
    if found["marker"]:
        made |= {"scope": "optional", "properties": [{"name": "ateplace:marker", "value": found["marker"].strip()}]}
    return made


def write(lock: Path, version: str, made: datetime, target: Path) -> None:
    target.write_text(json.dumps(bill(lock, version, made), indent=2) + "\n", encoding="utf-8")
