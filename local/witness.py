"""Watches, from outside, that no ateom is bound to a node before the node carries its pool's claim and our label.

On one etcd the resourceVersions of pods and nodes are one sequence, so "before" is exact: the write that set a pod's
`spec.nodeName` has a version, and the node's newest state older than that is what the scheduler chose.
"""

import bisect
import contextlib
import threading
from collections.abc import Callable
from types import TracebackType

import httpx

from ateplace import names
from ateplace.errors import LocalError
from ateplace.local.api import Api, ApiError, Object
from ateplace.local.kubeconfig import connect
from ateplace.local.plane import ControlPlane

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
GONE = 410
PAUSE = 0.2
"""Seconds before a watch that failed is tried again."""

Note = Callable[[str, Object], None]


class Witness:
    """Collects every node state and every binding of a plane, from the start of a `with` block on."""

    def __init__(self, plane: ControlPlane, scheduler: str = names.SCHEDULER) -> None:
        self._plane = plane
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._states: dict[str, list[tuple[int, frozenset[str]]]] = {}
        self._seen: dict[str, int] = {}
        self._bindings: list[tuple[int, str, str, str]] = []
        self._unbound: set[str] = set()
        self._judged = 0
        self._stopped = threading.Event()
        self.bound = 0
        self.gaps: list[str] = []
        """What was not seen since the last call of `violations`: a watch had to begin again."""

    def __enter__(self) -> "Witness":
        for path, note in ((NODES, self._note_node), (PODS, self._note_pod)):
            api = connect(self._plane.kubeconfig)
            version = _list(api, path, note)
            threading.Thread(target=self._follow, args=(api, path, note, version), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()

    def violations(self) -> list[str]:
        """Every binding since the last call that came too early, once both watches have caught up with the present.

        Raises LocalError when there may be one that the watch missed.
        """
        present = [item for path in (NODES, PODS) for item in self._plane.api.list(path)]
        wanted = {item["metadata"]["uid"]: int(item["metadata"]["resourceVersion"]) for item in present}
        self._plane.wait(
            lambda: all(self._seen.get(uid, 0) >= version for uid, version in wanted.items()),
            why="the witness to catch up",
        )
        with self._lock:
            gaps, self.gaps = self.gaps, []
            if gaps:
                raise LocalError(f"it cannot be known whether a pod was bound too early: {'; '.join(gaps)}")
            fresh = self._bindings[self._judged :]
            self._judged = len(self._bindings)
            return [complaint for binding in fresh if (complaint := self._judge(*binding))]

    def _judge(self, version: int, pod: str, node: str, pool_uid: str) -> str:
        states = self._states.get(node, [])
        at = bisect.bisect_left(states, (version,)) - 1
        keys = states[at][1] if at >= 0 else frozenset[str]()
        missing = [key for key in (names.claim_key(pool_uid), names.NODE_LABEL) if key not in keys]
        return f"{pod} was bound to {node} at {version} without {' and '.join(missing)}" if missing else ""

    def _follow(self, api: Api, path: str, note: Note, version: str) -> None:
        while not self._stopped.is_set():
            try:
                with api.watch(path, resourceVersion=version, allowWatchBookmarks="true") as events:
                    for event in events:
                        if self._stopped.is_set():
                            break
                        if event["type"] == "ERROR":
                            version = self._begin_again(api, path, note, version)
                            break
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            note(event["type"], event["object"])
            except ApiError as error:
                if error.status == GONE:
                    with contextlib.suppress(httpx.HTTPError, ApiError):
                        version = self._begin_again(api, path, note, version)
                self._stopped.wait(PAUSE)
            except httpx.HTTPError:
                self._stopped.wait(PAUSE)
        api.close()

    def _begin_again(self, api: Api, path: str, note: Note, version: str) -> str:
        """Where to go on after the API server has forgotten `version`."""
        newest = _list(api, path, note)
        with self._lock:
            self.gaps.append(f"what {path} were between versions {version} and {newest} was not seen")
        return newest

    def _note_node(self, kind: str, node: Object) -> None:
        meta = node["metadata"]
        version = int(meta["resourceVersion"])
        keys = {key for key in meta.get("annotations", {}) if key.startswith(names.CLAIM_PREFIX)}
        if meta.get("labels", {}).get(names.NODE_LABEL) == "true":
            keys.add(names.NODE_LABEL)
        with self._lock:
            states = self._states.setdefault(meta["name"], [])
            held = frozenset() if kind == "DELETED" else frozenset(keys)
            if not states or states[-1][1] != held:
                states.append((version, held))
        self._seen[meta["uid"]] = version

    def _note_pod(self, kind: str, pod: Object) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        version, uid = int(meta["resourceVersion"]), meta["uid"]
        node, pool_uid = spec.get("nodeName", ""), meta.get("labels", {}).get(names.POOL_UID_LABEL, "")
        with self._lock:
            if not node and kind != "DELETED":
                self._unbound.add(uid)
            elif uid in self._unbound:
                self._unbound.discard(uid)
                if node and pool_uid and spec.get("schedulerName") == self._scheduler:
                    self.bound += 1
                    self._bindings.append((version, f"{meta['namespace']}/{meta['name']}", node, pool_uid))
        self._seen[uid] = version


def _list(api: Api, path: str, note: Note) -> str:
    listed = api.get(path)
    for item in listed["items"]:
        note("ADDED", item)
    return str(listed["metadata"]["resourceVersion"])
