"""The map's server: history, streams, recordings, and who may talk to it."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ateplace.cli.map import history as histories
from ateplace.cli.map import wire
from ateplace.cli.map.app import create, events
from ateplace.cli.map.guard import Guard
from ateplace.cli.map.history import History, apply
from ateplace.cli.map.recording import Recorder, Replay, read
from ateplace.cli.map.source import Kind
from ateplace.errors import AteplaceError


def placement(**nodes: str) -> wire.Placement:
    shown = {name: node(name, state) for name, state in nodes.items()}
    return wire.Placement("", 100.0, "test", True, shown, {}, {}, wire.Totals(), [])


def node(name: str, state: Any = "cold") -> wire.Node:
    return wire.Node(name, "z", state, False, None, [])


def change(at: float, nodes: dict[str, wire.Node | None] | None = None, *, said: tuple[str, ...] = ()) -> wire.Change:
    return wire.Change("", at, nodes or {}, {}, {}, wire.Totals(ready=int(at)), list(said))


def decoded(history: History) -> wire.History:
    return msgspec.json.decode(history.body(), type=wire.History)


def test_start_and_changes_are_always_the_present() -> None:
    history = History(placement(n1="cold"), seconds=10)
    for second in range(40):
        history.append(change(100.0 + second, {f"n{second % 7}": node(f"n{second % 7}") if second % 3 else None}))
        told = decoded(history)
        for one in told.changes:
            apply(told.start, one)
        assert told.start == history.now
        assert all(history.now.at - one.at <= 10 for one in told.changes)
    assert len(decoded(history).changes) == 11


def test_history_is_bounded_in_bytes() -> None:
    history = History(placement(), most=4000)
    for second in range(200):
        history.append(change(100.0 + second / 100, {f"n{second}": node(f"n{second}")}))
    told = decoded(history)
    assert sum(len(wire.encode(one)) for one in told.changes) <= 4000
    assert 5 < len(told.changes) < 40
    assert len(told.start.nodes) + len(told.changes) == 200


def test_a_client_is_given_what_it_missed() -> None:
    history = History(placement())
    first = history.now.id
    for second in range(3):
        history.append(change(100.0 + second))
    missed = history.after(first)
    assert missed is not None
    assert [kept.number for kept in missed] == [1, 2, 3]
    assert history.after(history.now.id) == []


@pytest.mark.parametrize("id_", ["", "other-1", "{epoch}-9", "{epoch}-", "{epoch}-x", "{epoch}--1", "{epoch}-0"])
def test_a_client_that_cannot_go_on_is_given_a_fresh_start(id_: str) -> None:
    history = History(placement(), seconds=5)
    for second in range(8):
        history.append(change(100.0 + second))
    assert history.after(id_.format(epoch=history.epoch)) is None


def test_a_client_that_is_far_behind_is_given_a_fresh_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "BEHIND", 1000)
    history = History(placement())
    for second in range(50):
        history.append(change(100.0 + second))
    assert history.after(f"{history.epoch}-0") is None
    assert history.after(f"{history.epoch}-49") is not None


def test_a_timeline_has_a_point_a_second_and_every_burst() -> None:
    history = History(placement())
    for tenth in range(100):
        history.append(change(100.0 + tenth / 10, said=(f"at {tenth}",)))
    burst = wire.Burst(1, "demo/web", 100.0, 101.0, 300, 300, 0.5, 1.5, over=True)
    last = change(120.0)
    last.bursts = [burst]
    history.append(last)
    timeline = history.timeline()
    assert 10 <= len(timeline.points) <= 13
    assert timeline.points[-1].totals.ready == 120
    assert timeline.bursts == [burst]
    assert [one.text for one in timeline.said[:2]] == ["at 0", "at 1"]


async def gather(stream: AsyncIterator[bytes], count: int) -> list[bytes]:
    found = []
    async for part in stream:
        found.append(part)
        if len(found) == count:
            break
    return found


def test_a_stream_resumes_after_the_last_change_that_the_client_has() -> None:
    async def main() -> None:
        history = History(placement())
        history.append(change(101.0, {"n1": node("n1")}))
        history.append(change(102.0, {"n2": node("n2")}))
        stream = events(history, f"{history.epoch}-1")
        retry, second = await gather(stream, 2)
        assert retry == b"retry: 1000\n\n"
        kind, id_, data = second.decode().strip().split("\n")
        assert (kind, id_) == ("event: change", f"id: {history.epoch}-2")
        assert list(json.loads(data.removeprefix("data: "))["nodes"]) == ["n2"]

    asyncio.run(main())


def test_a_stream_goes_on_with_what_happens() -> None:
    async def main() -> None:
        history = History(placement())
        reading = asyncio.create_task(gather(events(history, history.now.id), 3))
        await asyncio.sleep(0)
        history.append(change(101.0))
        await asyncio.sleep(0.01)
        history.append(change(102.0))
        parts = await asyncio.wait_for(reading, 5)
        assert [part.decode().split("\n")[0] for part in parts[1:]] == ["event: change"] * 2

    asyncio.run(main())


def test_a_stream_that_cannot_resume_says_so_and_ends() -> None:
    async def main() -> list[bytes]:
        return [part async for part in events(History(placement()), "other-7")]

    assert asyncio.run(main())[1:] == [b"event: reset\ndata: {}\n\n"]


class Source:
    """A cluster that says one thing."""

    def __init__(self) -> None:
        self.history: History | None = History(placement(n1="warm"))
        self.ready = asyncio.Event()
        self.ready.set()

    def trouble(self) -> str:
        return "nothing"

    async def explain(self, kind: Kind, namespace: str, name: str) -> wire.Explanation:
        if name == "gone":
            raise AteplaceError("there is no pod demo/gone")
        return wire.Explanation(kind, f"{namespace}/{name}", [wire.Finding("ok", "<b>bold</b>", "")], [], [], [])


@cache
def guarded(token: str) -> Guard:
    return Guard(create(Source()), ["box.example"], token, 8390)


def ask(path: str, *, token: str = "", method: str = "GET", **headers: str) -> httpx.Response:
    async def main() -> httpx.Response:
        app = httpx.ASGITransport(guarded(token))
        async with httpx.AsyncClient(transport=app, base_url="http://127.0.0.1:8390") as client:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.request(method, path, headers=named)

    return asyncio.run(main())


def test_every_endpoint_answers_what_openapi_says() -> None:
    spec = ask("/openapi.json").json()
    assert set(spec["paths"]) == {
        "/api/placement",
        "/api/changes",
        "/api/history",
        "/api/timeline",
        "/api/explain/pod/{namespace}/{name}",
        "/api/explain/node/{name}",
        "/api/explain/pool/{namespace}/{name}",
    }
    assert all(set(verbs) == {"get"} for verbs in spec["paths"].values())
    described = spec["components"]["schemas"]["Placement"]["properties"]
    assert set(ask("/api/placement").json()) == set(described)
    assert ask("/api/history").json()["start"]["nodes"]["n1"]["state"] == "warm"
    assert ask("/api/timeline").json()["said"] == []
    assert ask("/api/explain/pod/demo/web-1").json()["findings"][0]["says"] == "<b>bold</b>"
    missing = ask("/api/explain/pod/demo/gone")
    assert (missing.status_code, missing.json()["detail"]) == (404, "there is no pod demo/gone")


@pytest.mark.parametrize("path", ["/", "/api", "/static/main.js", "/static/map.css", "/api/placement", "/nothing"])
def test_every_answer_forbids_everything_that_is_not_the_maps_own(path: str) -> None:
    headers = ask(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["img-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e%2fapp.py", "/static/", "/static/none.js"])
def test_only_the_pages_own_files_are_served(path: str) -> None:
    assert ask(path).status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8390", "127.0.0.1.evil.example", "", "[::1", "a b"])
def test_a_name_that_is_not_ours_is_refused(host: str) -> None:
    assert ask("/api/placement", Host=host).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8390", "localhost:8390", "[::1]:8390", "LOCALHOST", "box.example:8390"])
def test_names_and_addresses_of_ours_are_taken(host: str) -> None:
    assert ask("/api/placement", Host=host).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://127.0.0.1:8390"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}, 403),
        ({"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "cors"}, 200),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}, 200),
    ],
)
def test_pages_of_other_origins_read_nothing(headers: dict[str, str], status: int) -> None:
    assert ask("/api/placement", **headers).status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(method: str) -> None:
    assert ask("/api/placement", method=method).status_code == 405


def test_away_from_loopback_a_token_is_demanded() -> None:
    assert ask("/api/placement", token="secret").status_code == 401
    assert ask("/", token="secret").status_code == 401
    assert ask("/?token=wrong", token="secret").status_code == 401
    assert ask("/api/placement", token="secret", Authorization="Bearer secret").status_code == 200
    shown = ask("/?token=secret", token="secret")
    assert (shown.status_code, shown.headers["location"]) == (303, "/")
    cookie = shown.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert ask("/api/placement", token="secret", Cookie=cookie.split(";")[0]).status_code == 200
    assert ask("/api/placement", token="secret", Cookie="ateplace-map-8390=wrong").status_code == 401
    assert ask("/?token=s%C3%A9cret", token="secret").status_code == 401


def test_without_a_picture_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ateplace.cli.map.app.PATIENCE", 0.01)
    monkeypatch.setattr(Source, "trouble", lambda _: "nodes: 403 forbidden")
    monkeypatch.setattr(asyncio.Event, "wait", lambda _: asyncio.sleep(10))
    answer = ask("/api/placement")
    assert (answer.status_code, answer.json()["detail"]) == (503, "there is no data yet: nodes: 403 forbidden")


def recorded(path: Path, changes: int) -> History:
    history = History(placement(n1="cold"))
    recorder = Recorder(path).begin(history)
    for second in range(changes):
        recorder(history.append(change(101.0 + second, {f"n{second % 4}": node(f"n{second % 4}", "warm")})))
    recorder.close()
    return history


def test_a_recording_replays_to_the_same_state(tmp_path: Path) -> None:
    history = recorded(tmp_path / "map.jsonl", 12)

    async def main() -> None:
        replay = Replay(tmp_path / "map.jsonl", speed=1000)
        async with replay.following():
            assert replay.history is not None
            while replay.history.number < 12:
                await replay.history.wait()
            seen, wanted = replay.history.now, history.now
            assert (seen.nodes, seen.pods, seen.pools, seen.totals) == (
                wanted.nodes,
                wanted.pods,
                wanted.pools,
                wanted.totals,
            )
            assert not seen.live
            with pytest.raises(AteplaceError, match="no cluster to ask"):
                await replay.explain("node", "", "n1")

    asyncio.run(main())


def test_a_recording_is_its_owners_alone(tmp_path: Path) -> None:
    recorded(tmp_path / "map.jsonl", 1)
    assert (tmp_path / "map.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_recording_that_was_cut_off_ends_there(tmp_path: Path) -> None:
    path = tmp_path / "map.jsonl"
    recorded(path, 3)
    path.write_bytes(path.read_bytes()[:-5])
    assert len(read(path)[1]) == 2


@pytest.mark.parametrize("text", ["", "hello\n", '{"format":"other/1"}\n', "[]\n"])
def test_what_is_no_recording_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "map.jsonl"
    path.write_text(text)
    with pytest.raises(AteplaceError, match="is not a recording of the map"):
        read(path)


def test_a_recording_of_another_format_is_said(tmp_path: Path) -> None:
    path = tmp_path / "map.jsonl"
    path.write_bytes(wire.encode(wire.Header("ateplace-map/9", placement())) + b"\n")
    with pytest.raises(AteplaceError, match="in the format 'ateplace-map/9'"):
        read(path)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--listen", "nowhere"], 2, "is not HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], 2, "is not HOST:PORT"),
        (["--replay", "/nowhere/map.jsonl"], 1, "cannot read /nowhere/map.jsonl"),
        (["--replay", "a", "--record", "b"], 2, "cannot be recorded"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments: list[str], code: int, says: str) -> None:
    argv = [sys.executable, "-m", "ateplace.cli", "map", "--no-open", *arguments]
    if "--listen" not in arguments:
        argv += ["--listen", "127.0.0.1:0"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={"COLUMNS": "200"})
    assert done.returncode == code
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_ctrl_c_is_how_it_ends(tmp_path: Path) -> None:
    recorded(tmp_path / "map.jsonl", 2)
    argv = [sys.executable, "-u", "-m", "ateplace.cli", "map", "--no-open", "--listen", "127.0.0.1:0"]
    replay = ["--replay", str(tmp_path / "map.jsonl")]
    with subprocess.Popen([*argv, *replay], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline().split(" at ")[1].split()[0]
        id_ = httpx.get(f"{url}api/placement", trust_env=False).json()["id"]
        with httpx.stream("GET", f"{url}api/changes?after={id_}", trust_env=False) as answer:
            assert answer.status_code == 200
            process.send_signal(signal.SIGINT)
            answer.read()  # the stream ends
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, "")
