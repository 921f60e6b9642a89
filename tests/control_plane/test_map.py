"""The map and the commands that look, on the local plane with all of ateplace running: they answer fully, in a real
browser too, and nothing ever connects to an address that is not loopback."""

import hashlib
import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ateplace.cli.map.recording import read
from ateplace.local import ControlPlane, browser, substrate
from ateplace.local.api import ApiError
from ateplace.local.browser import Browser, Page
from ateplace.local.pods import Installation
from ateplace.local.scene import OVERLAY, start_map
from tests.control_plane.map_stage import ATEOM, LINGER, SLOT, SPACE, Sockets, Stage
from tests.unit.test_map_board import ordered

AXE = ("axe-core@4.14.0", "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878")
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Three nodes with room for four ateoms each, in two zones, and everything that runs on a plane."""
    with Sockets() as sockets, ControlPlane(start_delay=0.3) as plane:
        plane.add_nodes(2, "north", resources={SLOT: "4"}, labels={"topology.kubernetes.io/zone": "north"})
        plane.add_nodes(1, "south", resources={SLOT: "4"}, labels={"topology.kubernetes.io/zone": "south"})
        substrate.install(plane)
        installed = Installation(plane, OVERLAY, reconciler__linger=LINGER)
        installed.start()
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": SPACE}})
        url = start_map(plane, LINGER)
        yield Stage(plane, url, sockets)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if not browser.program():
        pytest.skip(browser.WITHOUT)
    with browser.browsing() as running:
        yield running


@pytest.fixture
def page(chromium: Browser, stage: Stage) -> Iterator[Page]:
    """The map, shown. In the end it has complained of nothing and asked no other server for anything."""
    with chromium.page() as shown:
        shown.size(1280, 900)
        shown.goto(stage.url)
        shown.wait("document.getElementById('status').dataset.state === 'live' && ateplaceMap.status()", timeout=90)
        yield shown
        assert shown.complaints == []
        assert {url for url in shown.requests if not url.startswith(stage.url)} == set()


def equals(page: Page, stage: Stage) -> None:
    """Wait until the page shows what `ateplace status -o json` says."""
    last: list[Any] = []

    def same() -> bool:
        last[:] = [ordered(page.evaluate("ateplaceMap.status()")), stage.status()]
        return bool(last[0] == last[1])

    try:
        stage.plane.wait(same, timeout=40, why="the page to show what status says", every=0.3)
    except AssertionError:
        assert last[0] == last[1]
        raise


def row(page: Page, pool: str) -> list[str]:
    """Wanted, ready, waiting and headroom of a pool, as the page shows them."""
    script = f"""[...document.querySelectorAll("#pool-rows tr")]
        .filter((row) => row.querySelector("button").innerText === {json.dumps(pool)})
        .flatMap((row) => [...row.cells].slice(2, 6).map((cell) => cell.innerText))"""
    found: list[str] = page.evaluate(script)
    return found


def wait_row(page: Page, pool: str, expected: list[str]) -> None:
    deadline = time.monotonic() + 40
    while (seen := row(page, pool)) != expected:
        assert time.monotonic() < deadline, f"{pool}: {seen}, not {expected}"
        time.sleep(0.1)


def test_the_page_shows_a_pool_come_grow_preempt_and_go(stage: Stage, page: Page) -> None:
    assert page.text("#no-pools") == "There are no WorkerPools."
    headroom = {"ateplace.ate.dev/headroom": "4"}
    substrate.pool(stage.plane, SPACE, "web", 4, resources=ATEOM, annotations=headroom)
    wait_row(page, "demo/web", ["4", "4", "0", "4 of 4"])
    stage.settled("web", 4, 4)
    equals(page, stage)
    before = time.time()
    time.sleep(1.1)  # the moment to go back to lies strictly between two changes

    substrate.scale(stage.plane, SPACE, "web", 10)
    stage.plane.wait(
        lambda: stage.placement().pools["demo/web"].ready == 10, timeout=60, why="ten ateoms, two of them preempting"
    )
    page.wait("[...document.querySelectorAll('#said span')].some((one) => /: -\\d placeholders/.test(one.innerText))")
    wait_row(page, "demo/web", ["10", "10", "0", "2 of 4"])
    equals(page, stage)

    # Back in time: four ateoms, and all placeholders.
    page.evaluate(
        f"(() => {{ const r = document.getElementById('when'); r.value = {before + 0.5}; "
        "r.dispatchEvent(new Event('input')); })()"
    )
    wait_row(page, "demo/web", ["4", "4", "0", "4 of 4"])
    assert page.evaluate("document.getElementById('status').dataset.state") == "past"
    page.click("#pause")
    wait_row(page, "demo/web", ["10", "10", "0", "2 of 4"])

    substrate.delete(stage.plane, SPACE, "web")
    page.wait("document.querySelectorAll('#pool-rows tr').length === 0", timeout=60)
    stage.plane.wait(lambda: stage.placement().totals.cold == 3, timeout=60, why="three cold nodes")
    equals(page, stage)
    said = page.text("#said")
    assert "pool demo/web created" in said
    assert "pool demo/web is gone" in said


def test_what_is_clicked_is_explained_with_the_sentences_of_explain(stage: Stage, page: Page) -> None:
    substrate.pool(stage.plane, SPACE, "why", 2, resources=ATEOM)
    stage.settled("why", 2)
    name = f"{SPACE}/{stage.pods('why')[0]}"
    pod = stage.explained("pod", name)
    assert pod["notes"] == []
    assert pod["decisions"], "the extenders were asked"
    node = stage.plane.api.get(f"/api/v1/namespaces/{SPACE}/pods/{name.split('/')[1]}")["spec"]["nodeName"]

    # A click on the node's cell: the nodes are drawn in the order of their names, zone by zone.
    page.wait("document.querySelector('#grid canvas').clientHeight > 0")
    zone, index = (0, int(node[-1])) if node.startswith("north") else (1, 0)
    size = page.evaluate("document.querySelectorAll('#grid canvas')[0].clientHeight")
    box = page.evaluate(
        f"(() => {{ const b = document.querySelectorAll('#grid canvas')[{zone}].getBoundingClientRect(); "
        "return [b.left, b.top] })()"
    )
    page.click_at(box[0] + size * (index + 0.5), box[1] + size / 2)
    page.wait(f"document.getElementById('panel-title').innerText === 'node {node}'")
    page.wait("document.querySelectorAll('#panel .findings li').length > 0")
    for finding in stage.explained("node", node)["findings"]:
        assert finding["says"] in page.text("#panel-body")

    page.wait(f"[...document.querySelectorAll('#panel .pods button')].some((b) => b.innerText === '{name}')")
    page.evaluate(
        f"[...document.querySelectorAll('#panel .pods button')].find((b) => b.innerText === '{name}').click()"
    )
    page.wait("document.getElementById('panel-body').innerText.includes('What the extenders decided')")
    assert page.text("#panel-title") == f"pod {name}"
    shown = page.text("#panel-body")
    for finding in pod["findings"]:
        assert finding["says"] in shown
    assert pod["decisions"][-1]["outcome"] in shown

    page.evaluate("[...document.querySelectorAll('#pool-rows button')].find((b) => b.innerText === 'demo/why').click()")
    page.wait("document.getElementById('panel-title').innerText === 'pool demo/why'")
    page.wait("document.getElementById('panel-body').innerText.includes('it wants 2 ateoms, and as many exist')")
    for finding in stage.explained("pool", "demo/why")["findings"]:
        assert finding["says"] in page.text("#panel-body")


def test_a_pools_panel_has_its_rules_and_how_much_of_its_namespaces_quota_is_used(stage: Stage, page: Page) -> None:
    plane = stage.plane
    quota = {"ateplace.ate.dev/max-nodes": "3", "ateplace.ate.dev/max-headroom": "2"}
    plane.api.patch(f"/api/v1/namespaces/{SPACE}", {"metadata": {"annotations": quota}})
    rules = {"ateplace.ate.dev/min-nodes": "2", "ateplace.ate.dev/max-per-node": "3", "ateplace.ate.dev/headroom": "1"}
    substrate.pool(plane, SPACE, "ruled", 2, resources=ATEOM, annotations=rules)
    stage.settled("ruled", 2, 1)
    page.wait("[...document.querySelectorAll('#pool-rows button')].some((b) => b.innerText === 'demo/ruled')")
    page.evaluate(
        "[...document.querySelectorAll('#pool-rows button')].find((b) => b.innerText === 'demo/ruled').click()"
    )
    page.wait("document.getElementById('panel-body').innerText.includes('rule max-headroom=2')")
    chips = "[...document.querySelectorAll('#panel .chips li')].map((one) => one.innerText)"
    assert page.evaluate(chips) == ["min-nodes=2", "max-per-node=3", "headroom=1"]
    shown = page.text("#panel-body")
    assert "rule min-nodes=2: its ateoms are on 2 nodes" in shown
    assert "rule max-nodes=3: the pools of namespace demo hold " in shown
    assert "rule max-headroom=2: the pools of namespace demo have 1 placeholder" in shown

    change = {"metadata": {"annotations": {"ateplace.ate.dev/min-nodes": HOSTILE}}}
    plane.api.patch(f"{substrate.POOLS.format(SPACE)}/ruled", change)
    page.wait(f"{chips}.some((one) => one.startsWith('rules cannot be read: ') && one.includes('<img src=x'))")
    assert page.evaluate("document.title") == "ateplace map"
    assert page.evaluate("document.querySelectorAll('#panel img, #panel script').length") == 0
    substrate.delete(plane, SPACE, "ruled")
    plane.api.patch(f"/api/v1/namespaces/{SPACE}", {"metadata": {"annotations": dict.fromkeys(quota)}})
    stage.plane.wait(lambda: "demo/ruled" not in stage.placement().pools, timeout=60, why="the pool to be gone")


def test_the_keyboard_reaches_every_node(stage: Stage, page: Page) -> None:
    page.evaluate("document.getElementById('grid').focus()")
    page.press("ArrowRight")
    assert page.text("#option").startswith("north-0001, zone north; ")
    page.press("Enter")
    page.wait("document.getElementById('panel-title').innerText === 'node north-0001'")
    page.press("Escape")
    assert page.text("#panel-title") == "Why?"


def test_foreign_text_is_text(stage: Stage, page: Page) -> None:
    name = stage.pods("why")[0]
    pod = stage.plane.api.get(f"/api/v1/namespaces/{SPACE}/pods/{name}")
    about = {"kind": "Pod", "namespace": SPACE, "name": name, "uid": pod["metadata"]["uid"], "apiVersion": "v1"}
    stage.plane.api.post(
        f"/api/v1/namespaces/{SPACE}/events",
        {
            "metadata": {"generateName": "hostile-", "namespace": SPACE},
            "involvedObject": about,
            "reason": HOSTILE[:100],
            "message": HOSTILE,
            "type": "Warning",
            "lastTimestamp": "2099-01-01T00:00:00Z",
        },
    )
    answer = httpx.get(f"{stage.url}api/explain/pod/{SPACE}/{name}", trust_env=False, timeout=30).json()
    assert HOSTILE in [event["message"] for event in answer["events"]]
    node = pod["spec"]["nodeName"]
    page.evaluate("document.getElementById('f-table').click(), 0")
    page.wait(f"[...document.querySelectorAll('#node-rows button')].some((b) => b.innerText === '{node}')")
    page.evaluate(f"[...document.querySelectorAll('#node-rows button')].find((b) => b.innerText === '{node}').click()")
    page.wait(f"[...document.querySelectorAll('#panel .pods button')].some((b) => b.innerText === '{SPACE}/{name}')")
    page.evaluate(
        f"[...document.querySelectorAll('#panel .pods button')].find((b) => b.innerText === '{SPACE}/{name}').click()"
    )
    page.wait("document.getElementById('panel-body').innerText.includes('<img src=x onerror')")
    assert page.evaluate("document.title") == "ateplace map"
    assert page.evaluate("document.querySelectorAll('#panel img, #panel script').length") == 0


def test_a_filter_leaves_what_it_says(stage: Stage, page: Page) -> None:
    def choose(control: str, value: str) -> None:
        page.evaluate(
            f"(() => {{ const c = document.getElementById('{control}'); c.value = '{value}'; "
            "c.dispatchEvent(new Event('input', { bubbles: true })); })()"
        )

    page.wait("document.getElementById('f-zone').options.length === 3")
    choose("f-zone", "south")
    page.wait("document.getElementById('shown').innerText.startsWith('1 node of 3')")
    choose("f-zone", "")
    choose("f-pool", "demo/why")
    page.wait("/^[12] nodes? of 3/.test(document.getElementById('shown').innerText)")
    choose("f-pool", "")
    page.wait("document.getElementById('shown').innerText.startsWith('3 nodes')")


def test_a_reload_a_dropped_connection_and_another_server_heal(stage: Stage, page: Page) -> None:
    page.reload()
    page.wait("globalThis.ateplaceMap?.status() && document.getElementById('status').dataset.state === 'live'")
    equals(page, stage)

    port = int(stage.url.rstrip("/").rpartition(":")[2])
    stage.plane.stop("map")
    page.wait("document.getElementById('status').dataset.state === 'lost'")
    substrate.scale(stage.plane, SPACE, "why", 3)
    assert start_map(stage.plane, LINGER, name="map-2", listen=f"127.0.0.1:{port}") == stage.url
    page.wait("document.getElementById('status').dataset.state === 'live'")
    stage.settled("why", 3)
    equals(page, stage)
    assert all("ERR_" in one for one in page.complaints), page.complaints
    page.complaints.clear()

    # A connection over which nothing comes any more, and a server that has all that was missed.
    stage.plane.keeper.signal("map-2", signal.SIGSTOP)
    page.wait("document.getElementById('status').dataset.state === 'lost'", timeout=60)
    substrate.scale(stage.plane, SPACE, "why", 2)
    stage.plane.keeper.signal("map-2", signal.SIGCONT)
    page.wait("document.getElementById('status').dataset.state === 'live'", timeout=60)
    stage.settled("why", 2)
    equals(page, stage)
    page.complaints.clear()


@pytest.fixture(scope="module")
def axe(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core's script."""
    if not shutil.which("npm"):
        pytest.skip("there is no npm here, from which axe-core would come")
    directory = tmp_path_factory.mktemp("axe")
    argv = ["npm", "pack", "--silent", AXE[0]]
    # The shell waits until it is known that npm, which may go out, is none of the plane's processes.
    with subprocess.Popen(
        ["sh", "-c", 'read go; exec "$@"', "sh", *argv],
        cwd=directory,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as npm:
        stage.sockets.others.add(npm.pid)
        said, complained = npm.communicate("go\n", timeout=120)
    if npm.returncode:
        pytest.skip(f"npm cannot fetch {AXE[0]}: {complained.strip()[-200:]}")
    subprocess.run(["tar", "xzf", said.split()[-1], "package/axe.min.js"], cwd=directory, check=True)
    script = (directory / "package" / "axe.min.js").read_bytes()
    assert hashlib.sha256(script).hexdigest() == AXE[1], f"{AXE[0]} is not what it was"
    return script.decode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(stage: Stage, page: Page, axe: str, scheme: str) -> None:
    page.scheme(scheme)
    page.evaluate("document.querySelector('#pool-rows button').click(), 0")
    page.wait("document.querySelectorAll('#panel .findings li').length > 0")
    page.call("Runtime.evaluate", expression=axe)
    found = []
    for step in ("0", "document.getElementById('f-table').click()"):
        page.evaluate(f"{step}, 0")
        found += page.evaluate(
            "axe.run().then(({ violations }) => violations.map((one) => "
            "[one.impact, one.id, one.nodes.map((node) => node.html).join(' ')]))"
        )
    assert [one for one in found if one[0] in {"serious", "critical"}] == []


def test_a_recording_of_a_burst_replays_to_the_same_final_state(stage: Stage, tmp_path: Path) -> None:
    substrate.scale(stage.plane, SPACE, "why", 1)
    stage.settled("why", 1)
    recording = tmp_path / "burst.jsonl"
    url = stage.url = start_map(stage.plane, LINGER, "--record", str(recording), name="recording")
    substrate.scale(stage.plane, SPACE, "why", 12)
    stage.settled("why", 12)

    def bursts(url: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{url}api/timeline", trust_env=False, timeout=30).json()["bursts"]
        return found

    stage.plane.wait(lambda: all(burst["over"] for burst in bursts(url)), why="the end of the burst")
    seen, told = stage.settled("why", 12), bursts(url)
    stage.plane.stop("recording")
    assert read(recording)[1]
    options = ("--replay", str(recording), "--speed", "1000")
    replayed = stage.url = start_map(stage.plane, LINGER, *options, name="replaying")

    def same() -> bool:
        again = stage.placement()
        assert not again.live
        return (again.nodes, again.pods, again.pools, again.totals) == (seen.nodes, seen.pods, seen.pools, seen.totals)

    stage.plane.wait(same, timeout=60, why="the end of the recording")
    assert bursts(replayed) == told


def test_the_api_server_refuses_the_proxy_of_a_pretended_pod(stage: Stage) -> None:
    """It has no address that anybody could connect to."""
    pods = stage.plane.api.list("/api/v1/pods")
    assert {pod["status"].get("podIP", "127.0.0.1") for pod in pods} == {"127.0.0.1"}
    mine = next(pod for pod in pods if pod["metadata"]["namespace"] == SPACE)
    began = time.monotonic()
    with pytest.raises(ApiError) as refused:
        stage.plane.api.get(f"/api/v1/namespaces/{SPACE}/pods/{mine['metadata']['name']}:8080/proxy/")
    assert time.monotonic() - began < 3
    assert re.search("address not allowed|no IP|not allowed", str(refused.value)), refused.value


def test_nothing_has_connected_to_an_address_that_is_not_loopback(stage: Stage) -> None:
    """Last: whatever the tests above have done was watched."""
    assert stage.sockets.found == set()
