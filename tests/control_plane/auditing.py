"""An API server with an audit log, and which of the roles' grants were used."""

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ateplace.local import ControlPlane
from tests.deploying import ACCOUNT, ROLES, SECOND_SCHEDULER, of_kind, render

ACCOUNTS = (*ROLES, "scheduler")


class Grant(NamedTuple):
    """One verb on one kind of object; `namespace` and `name` are empty where all are meant. Also what was asked for."""

    role: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str

    def covers(self, request: "Grant") -> bool:
        return self[:4] == request[:4] and self.namespace in {"", request.namespace} and self.name in {"", request.name}


def unused(granted: set[Grant], requests: set[Grant]) -> list[Grant]:
    """Grants that nothing needed: a request is a use of the narrowest one that covers it, and of no other."""
    used = set()
    for request in requests:
        covering = [grant for grant in granted if grant.covers(request)]
        if covering:
            used.add(max(covering, key=lambda grant: (bool(grant.name), bool(grant.namespace))))
    return sorted(granted - used)


def grants() -> set[Grant]:
    """What the manifests give to our ServiceAccounts, verb by verb. Roles of Kubernetes' own, which the scheduler is
    bound to, are left out: a stock kube-scheduler is meant to have them whole, whatever our pods happen to need."""
    objects = render(SECOND_SCHEDULER)
    rules = {kind: of_kind(objects, kind) for kind in ("Role", "ClusterRole")}
    found = set()
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in of_kind(objects, kind).values():
            reference = binding["roleRef"]
            for subject in binding["subjects"]:
                role = subject["name"].removeprefix("ateplace-")
                assert role in ACCOUNTS
                for rule in rules[reference["kind"]].get(reference["name"], {"rules": []})["rules"]:
                    namespace = binding["metadata"].get("namespace", "")
                    found |= {
                        Grant(role, verb, group, resource, namespace, name)
                        for verb in rule["verbs"]
                        for group in rule["apiGroups"]
                        for resource in rule["resources"]
                        for name in rule.get("resourceNames", [""])
                    }
    return found


class WithoutStreamingLists(ControlPlane):
    """An API server as it was before it could stream lists; `pids` are those of the plane's processes."""

    def _spawn(self, name: str, argv: list[str], env: Mapping[str, str] | None = None) -> int:
        if name == "kube-apiserver":
            argv = [*argv, "--feature-gates=WatchList=false"]
        pid = super()._spawn(name, argv, env)
        self.pids: dict[str, int] = {**getattr(self, "pids", {}), name: pid}
        return pid


class Audit:
    """The audit log's entries about our ServiceAccounts."""

    def __init__(self, plane: ControlPlane) -> None:
        self._log = plane.log("audit")

    def entries(self) -> Iterator[tuple[str, dict[str, str], dict[str, object]]]:
        for line in self._log.read_text("utf-8").splitlines():
            if ACCOUNT in line:
                entry = json.loads(line)
                role = entry["user"]["username"].removeprefix(ACCOUNT)
                if role in ACCOUNTS:
                    yield role, entry.get("objectRef", {}), entry

    def requests(self) -> set[Grant]:
        """Everything that was asked for."""
        found = set()
        for role, what, entry in self.entries():
            verb, group, resource = str(entry["verb"]), what.get("apiGroup", ""), what.get("resource", "")
            subresource = what.get("subresource")
            resource = f"{resource}/{subresource}" if subresource else resource
            name = what.get("name", "") or _selected(str(entry["requestURI"]))
            found.add(Grant(role, verb, group, resource, what.get("namespace", ""), name))
        return found

    def refused(self) -> list[str]:
        return [
            f"{role}: {entry['verb']} {entry['requestURI']}"
            for role, _, entry in self.entries()
            if entry.get("responseStatus", {}).get("code") == 403  # type: ignore[attr-defined]
        ]


def _selected(uri: str) -> str:
    """The name in a list's or watch's field selector: resourceNames are checked against it."""
    marker = "fieldSelector=metadata.name%3D"
    return uri.partition(marker)[2].partition("&")[0] if marker in uri else ""
