"""The command line: every command explains itself, and errors are one line with a documented exit code."""

import json
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import typer

from ateplace.cli import main as cli
from tests.unit.exposition import generator

PRINTS_DATA = {"settings", "status", "explain pod", "doctor", "certs bootstrap", "certs show", "certs rotate-ca"}


def commands() -> dict[str, Any]:
    generator().cli_page()  # mounts what other modules bring
    found = generator()._commands(typer.main.get_command(cli.app), "")
    return {path.strip(): command for path, command in found}


COMMANDS = commands()


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "ateplace.cli", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env={"COLUMNS": "200", **environment})


def test_every_command_that_was_promised_is_there() -> None:
    promised = {"run", "webhook", "extender", "reconciler", "up", "status", "settings", "version", "doctor", "migrate"}
    assert promised | {"uninstall", "explain pod", "certs bootstrap", "certs show", "certs rotate-ca"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_sentence_an_example_and_documented_options(name: str) -> None:
    command = COMMANDS[name]
    assert re.match(r"[A-Z].+\.", command.help)
    assert "Example: `" in command.help
    assert f"ateplace {name}" in command.help
    for option in command.params:
        assert option.name == "help" or option.help, option.name


@pytest.mark.parametrize("name", sorted(PRINTS_DATA))
def test_a_command_that_prints_data_prints_json_too(name: str) -> None:
    assert any("-o" in option.opts for option in COMMANDS[name].params)


def children() -> float:
    """Seconds of a processor that our ended children took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_lists_everything_quickly() -> None:
    began = children()
    done = run("--help")
    assert done.returncode == 0
    assert children() - began < 10, "seconds of a processor, however busy the machine is"
    for name in COMMANDS:
        assert name.split(" ")[0] in done.stdout


def test_help_imports_nothing_that_it_does_not_print() -> None:
    argv = [sys.executable, "-X", "importtime", "-m", "ateplace.cli", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"aiohttp", "asyncio", "cryptography", "httpx", "kubernetes", "pydantic", "uvicorn", "yaml"}


@pytest.mark.parametrize("name", cli.ELSEWHERE)
def test_the_list_of_commands_says_what_the_command_itself_says(name: str) -> None:
    group: Any = typer.main.get_command(cli.app)
    command = group.commands[name]
    assert (command.help or "").partition("\n\n")[0].replace("\n", " ") == cli.ELSEWHERE[name].summary


def test_the_settings_come_from_flags_before_the_environment_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("webhook: {port: 1001, body_bytes: 2048}\nextender: {port: 1002}\n")
    environment = {"ATEPLACE_WEBHOOK_PORT": "1003", "ATEPLACE_EXTENDER_PORT": "1004", "ATEPLACE_SETTINGS": str(file)}
    done = run("settings", "-o", "json", "--set", "webhook.port=1005", **environment)
    rows = {row["setting"]: (row["value"], row["source"]) for row in json.loads(done.stdout)}
    assert rows["webhook.port"] == (1005, "flag")
    assert rows["extender.port"] == (1004, "environment")
    assert rows["webhook.body_bytes"] == (2048, "file")
    assert rows["serve.health_port"] == (8080, "default")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["settings", "--set", "webhook.colour=red"], 2, "ateplace: unknown setting 'webhook.colour' (flag); "),
        (["settings", "--set", "webhook.port=red"], 2, "ateplace: setting 'webhook.port' (flag): "),
        (["status", "--set", "cluster.kubeconfig=/nowhere"], 2, "ateplace: cannot use the cluster configuration"),
        (["doctor", "--set", "cluster.kubeconfig=/nowhere"], 2, "ateplace: cannot use the cluster configuration"),
    ],
)
def test_errors_are_one_line_and_a_documented_exit_code(arguments: list[str], code: int, says: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fly"], "No such command"),
        (["explain", "pod", "demo/"], "neither may be empty"),
        (["explain", "pod", "/web"], "neither may be empty"),
        (["up", "--nodes", "3"], "greater than or equal to 4"),
        (["doctor", "--check", "colour", "--set", "cluster.kubeconfig=/nowhere"], "no check named 'colour'"),
    ],
)
def test_nonsense_is_wrong_usage(arguments: list[str], says: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_who_watches_json_is_told_of_trouble_and_goes_on(tmp_path: Path) -> None:
    from tests.unit.kube_server import kubeconfig

    flags = [f"--set=cluster.kubeconfig={kubeconfig(tmp_path, 'http://127.0.0.1:1')}", "--interval=0.2"]
    argv = [sys.executable, "-m", "ateplace.cli", "status", "--watch", "--output=json", *flags]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        deadline = threading.Timer(60, watching.kill)
        deadline.start()
        assert watching.stdout and watching.stderr
        told = [watching.stderr.readline(), watching.stderr.readline()]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 130
        deadline.cancel()
        assert watching.stdout.read() == ""
    assert all(line.startswith("ateplace: GET ") for line in told)


def test_a_cluster_that_cannot_be_reached_is_exit_code_1(tmp_path: Path) -> None:
    from tests.unit.kube_server import kubeconfig

    done = run("doctor", "--set", f"cluster.kubeconfig={kubeconfig(tmp_path, 'http://127.0.0.1:1')}",
               "--set", "cluster.request_timeout=1")  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("ateplace: GET /version: ")


def test_it_is_a_kubectl_plugin_too() -> None:
    plugin = Path(sys.executable).with_name("kubectl-ateplace")
    done = subprocess.run([plugin, "version"], capture_output=True, text=True, timeout=60)
    assert done.stdout == run("version").stdout
