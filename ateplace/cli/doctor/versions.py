"""Versions: a Kubernetes that we know, one ateplace everywhere, a scheduler that fits the API server."""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

import ateplace
from ateplace.cli.doctor.look import Look
from ateplace.cli.doctor.ours import ROLES
from ateplace.cli.findings import APPLY, Finding, fail, ok, warn
from ateplace.kube.objects import Deployment

Minor = tuple[int, int]

LEAST: Final[Minor] = (1, 30)
"""The first with ValidatingAdmissionPolicies in v1, which our manifests use; whether it is enough was not tried."""
TESTED: Final[tuple[Minor, ...]] = ((1, 33), (1, 34), (1, 35), (1, 36), (1, 37))
"""By `make test-versions`; docs/versions.json says when and how."""
TAG: Final = re.compile(r"^[^@]*:(?P<tag>\w[\w.-]*)(@|$)")
"""Of a reference to an image: what follows the last colon before a digest, unless that is a registry's port."""


class Feature(NamedTuple):
    """Something of Kubernetes that ateplace uses and does without."""

    name: str
    is_on: Callable[[Minor], bool]
    """Whether an API server of that minor version has it unless it was told otherwise."""
    without: str
    """What is less where it is missing."""


FEATURES: Final = (
    Feature(
        "streaming lists",
        lambda found: found == (1, 32) or found >= (1, 34),
        "watches begin with a paged list, which takes the API server more memory",
    ),
    Feature(
        "image volumes",
        lambda found: found >= (1, 35),
        "placeholders do not pull the ateom image before a burst",
    ),
)


class Version(Struct, rename="camel"):
    git_version: str = ""


async def check(look: Look) -> list[Finding]:
    version = await look.kube.get("/version", Version)
    return [judge_server(version.git_version), *judge_images(await look.ours(), version.git_version, look)]


def minor(version: str) -> Minor | None:
    """(1, 36) of `v1.36.3-gke.100`; None when it is no version."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def lacks(found: Minor) -> list[str]:
    """What this version has not, by default, and what follows; a sentence without its full stop for each."""
    return [f"no {one.name}: {one.without}" for one in FEATURES if not one.is_on(found)]


def judge_server(version: str) -> Finding:
    found = minor(version)
    tested = ", ".join(f"{major}.{small}" for major, small in TESTED)
    if found is None:
        return warn(f"the API server calls itself {version!r}", f"ateplace is tested with Kubernetes {tested}")
    if found < LEAST:
        least = f"{LEAST[0]}.{LEAST[1]}"
        return fail(f"Kubernetes {version} is older than {least}", f"upgrade the cluster to {least} or later")
    if found not in TESTED:
        return warn(
            f"Kubernetes {version} is not among the tested versions", f"tested with {tested}; try it there first"
        )
    return ok("; ".join((f"Kubernetes {version}", *lacks(found))))


def judge_images(ours: Mapping[str, Deployment], server: str, look: Look) -> list[Finding]:
    """One version of ateplace in every role and here; a scheduler not newer than the API server."""
    found = []
    tags = {name: _tag(ours[name]) for name in ROLES if name in ours}
    if len(set(tags.values())) > 1:
        listed = ", ".join(f"{name} {tag}" for name, tag in sorted(tags.items()))
        found.append(warn(f"the roles run different versions: {listed}", f"finish the rollout, or {APPLY}"))
    elif tags and (tag := next(iter(tags.values()))) and tag.removeprefix("v") != ateplace.__version__:
        says = f"this is ateplace {ateplace.__version__}, the cluster runs {tag}"
        found.append(warn(says, f"use the same version here: install {tag} from its source tree"))
    name = look.settings.certs.scheduler_deployment
    scheduler = minor(_tag(ours[name])) if name in ours else None
    api = minor(server)
    if scheduler and api and scheduler > api:
        says = f"the scheduler ({scheduler[0]}.{scheduler[1]}) is newer than the API server, which is not supported"
        found.append(fail(says, _image(api, server)))
    elif scheduler and api and scheduler < (api[0], api[1] - 1):
        says = f"the scheduler ({scheduler[0]}.{scheduler[1]}) is more than one minor version behind the API server"
        found.append(warn(says, _image(api, server)))
    if "" in tags.values():
        return found or [ok("the images are named by digest alone, which does not say their version")]
    return found or [ok(f"ateplace {ateplace.__version__} everywhere")]


def _image(api: Minor, server: str) -> str:
    """What to do for a scheduler of the API server's version, without what its vendor has added to it."""
    patch = re.match(r"v?\d+\.\d+(\.\d+)", server)
    tag = f"v{api[0]}.{api[1]}{patch[1] if patch else '.x'}"
    return f"in deploy/scheduler/kustomization.yaml set newTag to {tag} and remove the digest, then {APPLY}"


def _tag(deployment: Deployment) -> str:
    """The tag of its first container's image; empty when it has none."""
    containers = deployment.spec.template.spec.containers or []
    found = TAG.search(containers[0].image) if containers else None
    return found["tag"] if found else ""
