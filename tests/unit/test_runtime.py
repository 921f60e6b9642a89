"""A process's life: roles, supervised tasks, signals."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio import sslproto
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ateplace.process.runtime import LARGE, Role, Runtime, run
from ateplace.settings import Cluster, Serve, Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a kubeconfig that leads nowhere: nothing here calls the API server."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "nowhere",
        "contexts": [{"name": "nowhere", "context": {"cluster": "nowhere", "user": "nobody"}}],
        "clusters": [{"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "nobody", "user": {}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    serve = Serve(host="127.0.0.1", health_port=0, drain=0.2, grace=1)
    return Settings(cluster=Cluster(kubeconfig=str(path)), serve=serve)


def role(events: list[str], name: str, during: Any = None) -> Role:
    @contextlib.asynccontextmanager
    async def enter(runtime: Runtime) -> AsyncIterator[None]:
        events.append(f"{name} entered")
        if during is not None:
            during(runtime)
        try:
            yield
        finally:
            events.append(f"{name} left, stopping: {runtime.stopping.is_set()}")

    return enter


def soon(action: Any) -> Any:
    return lambda _: asyncio.get_running_loop().call_later(0.05, action)


def signals(number: signal.Signals) -> Any:
    return soon(lambda: os.kill(os.getpid(), number))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_roles_are_entered_in_order_and_left_in_reverse_on_a_signal(settings: Settings, number: Any) -> None:
    events: list[str] = []
    code = run(settings, {"a": role(events, "a"), "b": role(events, "b", signals(number))})
    assert code == 0
    assert events == ["a entered", "b entered", "b left, stopping: True", "a left, stopping: True"]


def test_a_task_that_fails_ends_the_process_with_1(settings: Settings) -> None:
    async def fail() -> None:
        raise RuntimeError("broken on purpose")

    events: list[str] = []
    assert run(settings, {"a": role(events, "a", lambda runtime: runtime.spawn(fail(), "failing"))}) == 1
    assert events == ["a entered", "a left, stopping: True"]


def test_a_task_that_ends_or_is_cancelled_ends_nothing(settings: Settings) -> None:
    async def nothing() -> None: ...

    def during(runtime: Runtime) -> None:
        runtime.spawn(nothing(), "short")
        runtime.spawn(asyncio.sleep(60), "cancelled").cancel()
        runtime.spawn(asyncio.sleep(60), "cancelled at the end")
        asyncio.get_running_loop().call_later(0.1, runtime.stop)

    assert run(settings, {"a": role([], "a", during)}) == 0


def test_a_role_that_waits_to_start_can_be_stopped(settings: Settings) -> None:
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def waiting(runtime: Runtime) -> AsyncIterator[None]:
        asyncio.get_running_loop().call_later(0.05, runtime.stop)
        await asyncio.Event().wait()
        yield

    assert run(settings, {"a": role(events, "a"), "b": waiting}) == 0
    assert events == ["a entered", "a left, stopping: True"]


def test_a_role_that_cannot_start_is_a_failure(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    @contextlib.asynccontextmanager
    async def broken(_: Runtime) -> AsyncIterator[None]:
        if settings:
            raise OSError("the port is taken")
        yield

    assert run(settings, {"a": broken}) == 1
    assert "the port is taken" in capsys.readouterr().err


def test_a_taken_health_port_is_a_failure(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        serve = settings.serve.model_copy(update={"health_port": taken.getsockname()[1]})
        assert run(settings.model_copy(update={"serve": serve}), {}) == 1
    assert "in use" in capsys.readouterr().err


def test_shared_things_are_made_once(settings: Settings) -> None:
    made = []

    class View:
        def __init__(self, runtime: Runtime) -> None:
            made.append(runtime)

    def during(runtime: Runtime) -> None:
        assert runtime.shared(View, View) is runtime.shared(View, View)
        asyncio.get_running_loop().call_later(0.01, runtime.stop)

    assert run(settings, {"a": role([], "a", during)}) == 0
    assert len(made) == 1


def test_a_second_signal_ends_the_process_at_once(settings: Settings, tmp_path: Path) -> None:
    import subprocess
    import time

    program = tmp_path / "stubborn.py"
    program.write_text(
        "import asyncio, contextlib, sys\n"
        "from ateplace.process.runtime import run\n"
        "from ateplace.settings import Cluster, Serve, Settings\n"
        "@contextlib.asynccontextmanager\n"
        "async def stubborn(runtime):\n"
        "    print('entered', flush=True)\n"
        "    yield\n"
        "    print('leaving', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "serve = Serve(host='127.0.0.1', health_port=0, drain=0)\n"
        "sys.exit(run(Settings(cluster=Cluster(kubeconfig=sys.argv[1]), serve=serve), {'stubborn': stubborn}))\n"
    )
    command = [sys.executable, str(program), settings.cluster.kubeconfig]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "entered\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "leaving\n"
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 1
        assert time.monotonic() - start < 5


def test_what_asyncio_allocates_to_read_from_tls_is_no_large_block() -> None:
    """A large block is mapped when it is allocated and unmapped when it is freed: for every read that is too much."""
    block = sslproto.SSLProtocol.max_size + sys.getsizeof(b"")
    assert block < LARGE
