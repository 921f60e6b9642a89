"""A steady stream of ateoms: so many a second are created, each is deleted some seconds later, nothing is forgiven;
and what was said meanwhile about calls that failed."""

import contextlib
import itertools
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

import httpx

from ateplace.local import ApiError, ControlPlane, substrate
from ateplace.local.api import Api, Object
from ateplace.local.kubeconfig import connect

CREATORS = 12
"""Threads that create: at 20 pods a second, enough for creations that take half a second each."""
DELETERS = 6
"""As many as it takes to keep up, or the cluster fills."""
STALL = 1.0
"""Seconds late from which on a beat of a tenth of a second means that the machine stood still."""
WEBHOOK_PATIENCE = 5.0
"""timeoutSeconds in deploy/base/webhook-configuration.yaml."""
TIMED_OUT = re.compile(r"deadline exceeded|timed out|[Tt]imeout(?!=)")
"""How it is said that patience ran out; `?timeout=5s` is in the address of every webhook, and says nothing."""


def failed_calls(plane: ControlPlane) -> list[str]:
    """What extenders and schedulers, living and dead, have said about calls that failed."""
    found = []
    for log in sorted((plane.directory / "logs").glob("ateplace-*.log")):
        for line in log.read_text("utf-8", "replace").splitlines():
            if line.startswith("{") and json.loads(line)["message"] == "call failed":
                found.append(f"{log.stem}: {line}")
            elif re.search(r"Error scheduling pod|Failed to (filter|prioritize)|extender.*err=", line):
                found.append(f"{log.stem}: {line[:400]}")
    return found


def blamed(failures: list[tuple[float, str]], stalls: list[tuple[float, float]]) -> list[tuple[float, str]]:
    """Failures but for calls that met a stall and ran out of time: then the API server's patience with a webhook may
    end whatever the webhook does. A call that was refused, or found nobody, failed for another reason."""
    return [
        (at, why)
        for at, why in failures
        if not TIMED_OUT.search(why) or not any(begin < at + WEBHOOK_PATIENCE and at < end for begin, end in stalls)
    ]


class Load:
    """From the start of a `with` block to its end; `failures` are creations that were refused or got no answer."""

    def __init__(self, plane: ControlPlane, namespace: str, pool: str, *, rate: float = 20, life: float = 8) -> None:
        self._plane = plane
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._pool = plane.api.get(f"{substrate.POOLS.format(namespace)}/{pool}")
        self._interval = 1 / rate
        self._life = life
        self._stop = threading.Event()
        self._alive: deque[tuple[float, str]] = deque()
        work = [*[self._create] * CREATORS, *[self._delete] * DELETERS]
        self._threads = [threading.Thread(target=self._work, args=(each,), daemon=True) for each in work]
        self._threads.append(threading.Thread(target=self._feel_the_pulse, daemon=True))
        self._beats = itertools.count()
        self._lock = threading.Lock()
        self._sent: list[float] = []
        self.failures: list[tuple[float, str]] = []
        """When sent, in seconds after the beginning, and why it failed."""
        self.stalls: list[tuple[float, float]] = []
        """Between these moments, in the same seconds, the machine did not even let a sleeper wake."""
        self.slowest = 0.0

    def __enter__(self) -> "Load":
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._ended = time.monotonic()
        for thread in self._threads:
            thread.join(60)

    @property
    def created(self) -> int:
        return len(self._sent)

    def since(self, moment: float) -> tuple[int, list[tuple[float, str]]]:
        """How many creations that were sent after `moment` (time.monotonic) succeeded, and the failures among them."""
        failed = [(at, why) for at, why in self.failures if self._began + at > moment]
        return sum(sent > moment for sent in self._sent), failed

    @property
    def rate(self) -> float:
        """Pods created per second, over the whole block."""
        return self.created / (self._ended - self._began)

    def pods(self) -> list[Object]:
        """Those that are there."""
        return self._plane.api.list(self._path, labelSelector=f"ate.dev/worker-pool={self._pool['metadata']['name']}")

    def unbound(self) -> int:
        """Those that no scheduler has placed yet."""
        return sum("nodeName" not in pod["spec"] for pod in self.pods())

    def placed(self) -> bool:
        """Whether all are; an AssertionError that says why not otherwise, for `plane.wait`."""
        waiting = [pod for pod in self.pods() if "nodeName" not in pod["spec"]]
        said = [each.get("message", "") for pod in waiting[:1] for each in pod["status"].get("conditions", ())]
        assert not waiting, f"{len(waiting)} of {len(self.pods())} wait: {said}"
        return True

    def _work(self, work: Callable[[Api], None]) -> None:
        with contextlib.closing(connect(self._plane.kubeconfig)) as api:
            work(api)

    def _create(self, api: Api) -> None:
        template = substrate.deployment(self._pool)["spec"]["template"]
        body = {**template, "metadata": {**template["metadata"], "generateName": "load-"}}
        while not self._stop.is_set():
            with self._lock:
                due = self._began + next(self._beats) * self._interval
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            sent = time.monotonic()
            try:
                name = api.post(self._path, body)["metadata"]["name"]
            except (ApiError, httpx.HTTPError) as error:
                self.failures.append((sent - self._began, str(error)[:400]))
                continue
            self._sent.append(sent)
            self.slowest = max(self.slowest, time.monotonic() - sent)
            self._alive.append((sent, name))

    def blamed(self) -> list[tuple[float, str]]:
        """Failures but for those that `blamed` forgives."""
        return blamed(self.failures, self.stalls)

    def _feel_the_pulse(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(0.1):
            now = time.monotonic()
            if now - last > STALL:
                self.stalls.append((last - self._began, now - self._began))
            last = now

    def clear(self) -> None:
        """Delete what is left, and wait until it is gone."""
        for pod in self.pods():
            with contextlib.suppress(ApiError):
                self._plane.api.delete(f"{self._path}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
        self._plane.wait(lambda: not self.pods(), timeout=60, why="the load's pods to be gone")

    def _delete(self, api: Api) -> None:
        while not self._stop.wait(0.02):
            name = self._next_to_go()
            if name:
                with contextlib.suppress(ApiError, httpx.HTTPError):
                    api.delete(f"{self._path}/{name}", {"gracePeriodSeconds": 0})

    def _next_to_go(self) -> str:
        with self._lock:
            due = self._alive and self._alive[0][0] < time.monotonic() - self._life
            return self._alive.popleft()[1] if due else ""
