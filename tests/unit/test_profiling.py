"""Profiling on a real socket: the process that is profiled is a child, because its main thread must run the loop."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ateplace.settings import Settings
from tests.unit.kube_server import kubeconfig

BUSY = """
import asyncio, sys
import uvloop
from ateplace.process import debug

KEPT = []

def burn():
    return sum(number * number for number in range(20_000))

async def work():
    while True:
        burn()
        KEPT.append(bytearray(1000))
        del KEPT[:-5000]  # the newest stay, however long this has run
        await asyncio.sleep(0)

async def main():
    server = debug.server(0)
    await server.start()
    print(server.port, flush=True)
    task = asyncio.create_task(work(), name="the worker")
    await asyncio.to_thread(sys.stdin.read)
    task.cancel()
    await server.stop(0.1)

uvloop.run(main())
"""


@pytest.fixture(scope="module")
def debug() -> Iterator[httpx.Client]:
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child, httpx.Client(trust_env=False, timeout=60) as client:
        assert child.stdout and child.stdin
        client.base_url = httpx.URL(f"http://127.0.0.1:{int(child.stdout.readline())}")
        yield client
        child.stdin.close()
        assert child.wait(10) == 0


def test_the_cpu_profile_names_the_function_that_burns(debug: httpx.Client) -> None:
    answer = debug.get("/debug/cpu", params={"seconds": 1})
    assert answer.status_code == 200
    shares = {place: float(own) for own, place in re.findall(r"([\d.]+)%\s+[\d.]+%\s+(\S+)", answer.text)}
    assert max(shares, key=lambda place: shares[place]).startswith("burn.")


def test_collapsed_stacks_are_lines_of_frames_and_a_count(debug: httpx.Client) -> None:
    lines = debug.get("/debug/cpu", params={"seconds": 0.5, "format": "collapsed"}).text.splitlines()
    assert lines
    assert all(re.fullmatch(r".+ \d+", line) for line in lines)
    assert any(";work (" in line and ";burn (" in line for line in lines)


def test_the_heap_profile_shows_what_stayed(debug: httpx.Client) -> None:
    text = debug.get("/debug/heap", params={"seconds": 0.5}).text
    assert re.search(r"^\s*[\d.]+\s+\d+\s+<string>:\d+$", text, re.MULTILINE), text


def test_tasks_say_where_they_wait(debug: httpx.Client) -> None:
    assert re.search(r"^the worker\s+sleep|^the worker\s+work", debug.get("/debug/tasks").text, re.MULTILINE)


@pytest.mark.parametrize("seconds", ["0", "-1", "301", "nan", "soon"])
def test_bad_durations_are_refused(debug: httpx.Client, seconds: str) -> None:
    assert debug.get("/debug/cpu", params={"seconds": seconds}).status_code == 400


def test_one_profile_is_taken_at_a_time(debug: httpx.Client) -> None:
    answers: list[httpx.Response] = []
    long = threading.Thread(target=lambda: answers.append(debug.get("/debug/cpu", params={"seconds": 1})))
    with httpx.Client(base_url=debug.base_url, trust_env=False, timeout=60) as second:
        long.start()
        while long.is_alive():
            answers.append(second.get("/debug/cpu", params={"seconds": 0.01}))
        long.join()
    assert {answer.status_code for answer in answers} == {200, 409}


def run(settings: str) -> str:
    """A process without roles, for as long as it takes to look at its debug port."""
    return f"""
import sys
from ateplace import settings
from ateplace.process import runtime
sys.exit(runtime.run(settings.load({{}}, {settings}).settings, {{}}))
"""


def test_the_debug_port_is_there_when_asked_for_and_on_loopback_only(tmp_path: Path) -> None:
    config = kubeconfig(tmp_path, "http://127.0.0.1:1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [f"cluster.kubeconfig={config}", "serve.host=::", "serve.health_port=0", f"serve.debug_port={port}"]
    with subprocess.Popen([sys.executable, "-c", run(repr(flags))]) as child:
        text = ""
        deadline = time.monotonic() + 30
        while not text and time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                text = httpx.get(f"http://127.0.0.1:{port}/debug/tasks", trust_env=False).text
            time.sleep(0.1)
        listening = Path(f"/proc/{child.pid}/net/tcp").read_text() + Path(f"/proc/{child.pid}/net/tcp6").read_text()
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 0
    assert " tasks, Python " in text
    assert set(re.findall(rf"([0-9A-F]+):{port:04X} 0+:0000 0A", listening)) == {"0100007F"}


def test_the_debug_port_is_off_by_default() -> None:
    assert Settings().serve.debug_port == 0


def test_a_process_that_traces_from_its_start_shows_its_whole_heap_at_once_and_goes_on_tracing() -> None:
    code = """
import asyncio, tracemalloc
from ateplace.process import debug
kept = [bytearray(100_000) for _ in range(10)]
print(asyncio.run(debug.heap(300.0)))
assert tracemalloc.is_tracing()
"""
    environment = os.environ | {"PYTHONTRACEMALLOC": "1"}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert "allocated since the process started and not freed" in done.stdout
    assert re.search(r"^\s*9\d\d\.\d\s+\d+\s+<string>:4$", done.stdout, re.MULTILINE), done.stdout
