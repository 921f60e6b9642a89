"""`python docs/generate.py` writes the pages that can be read off the code; with `--check` it only names stale ones.

settings.md    every setting, from ateplace.settings
metrics.md     the tables, from the registry; the prose around them is written by hand and stays
cli.md         every command, from its --help
modules.md     every module, by layer, from the first sentence of its docstring
../README.md   the table of Kubernetes versions, from versions.json, which `make test-versions` writes
"""

import ast
import importlib
import json
import pkgutil
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import typer

from ateplace.cli.doctor.versions import lacks
from ateplace.local.versions import SUPPORTED
from ateplace.process import metrics
from ateplace.settings import FILE_VARIABLE, PREFIX, Settings, meanings

DOCS = Path(__file__).parent

PACKAGES = ("ateplace", "ateplace.certs", "ateplace.webhook", "ateplace.extender", "ateplace.reconciler")
NOT_SHIPPED = "ateplace.local"
BEGIN, END = "<!-- generated: {} -->", "<!-- /generated -->"
WHO = {
    "ateplace": "Every process, unless it says otherwise",
    "ateplace.certs": "Certificates (every process that has or makes one)",
    "ateplace.webhook": "Webhook",
    "ateplace.extender": "Extender",
    "ateplace.reconciler": "Reconciler (the leader, unless it says otherwise)",
}


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "One model for every role and command; each setting has a default that works. Three sources, the later wins:",
        "",
        f"1. a YAML file, named by `--settings FILE` or `{FILE_VARIABLE}`, with the groups below as its top level;",
        f"2. the environment: `{PREFIX}<GROUP>_<FIELD>`, e.g. `{PREFIX}WEBHOOK_PORT=9443`;",
        "3. flags: `--set webhook.port=9443`, as often as needed.",
        "",
        "An unknown key in any of them is refused, and so is a value that does not fit. `ateplace settings` prints",
        "what is in effect and where each value came from. In a cluster they are environment, from a ConfigMap that",
        "kustomize generates ([operations.md](operations.md)); `doctor` reads them there, and judges by them except",
        "where it is given others.",
    ]
    meaning = meanings()
    for group, field in Settings.model_fields.items():
        model: Any = field.annotation
        lines += [
            "",
            f"## {group}",
            "",
            (model.__doc__ or "").strip(),
            "",
            "| setting | default | bounds | meaning |",
            "|---|---|---|---|",
        ]
        for name, one in model.model_fields.items():
            default = "empty" if one.default == "" else f"`{one.default}`"
            choices = get_args(one.annotation)
            among = f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
            lines.append(
                f"| `{group}.{name}` | {default} | {bounds(one.metadata)} | {meaning[f'{group}.{name}']}{among} |"
            )
    return "\n".join(lines) + "\n"


def bounds(constraints: list[Any]) -> str:
    """The least and the largest value of a number, as in `> 0, ≤ 60`; empty for what is none."""
    signs = {"gt": ">", "ge": "≥", "le": "≤"}
    found = {name: getattr(each, name) for each in constraints for name in signs if hasattr(each, name)}
    return ", ".join(f"{signs[name]} {value}" for name, value in found.items())


def metrics_by_package() -> dict[str, list[tuple[str, str, str, str]]]:
    """Package to (name, type, labels, documentation) of every metric that any of our modules registers."""
    for info in pkgutil.walk_packages(importlib.import_module("ateplace").__path__, "ateplace."):
        if not info.name.startswith(NOT_SHIPPED) and not info.name.endswith(("__main__", ".cli")):
            importlib.import_module(info.name)
    owners: dict[int, str] = {}
    registered = {id(collector) for collector in metrics.REGISTRY._collector_to_names}
    for name, module in sorted(sys.modules.items()):
        if owner := _owner(name):
            for value in vars(module).values():
                if id(value) in registered:
                    owners.setdefault(id(value), owner)
    found = defaultdict(list)
    for collector in metrics.REGISTRY._collector_to_names:
        for family in collector.describe() if hasattr(collector, "describe") else ():
            name = family.name + ("_total" if family.type == "counter" else "_info" if family.type == "info" else "")
            labels = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", None) or ()
            if name.startswith(metrics.PREFIX):
                row = (name, family.type, ", ".join(labels), family.documentation)
                found[owners.get(id(collector), "ateplace")].append(row)
    return {package: sorted(found[package]) for package in PACKAGES}


def _owner(module: str) -> str:
    """The package of ours that a module belongs to; empty for one of others."""
    found = [package for package in PACKAGES if f"{module}.".startswith(f"{package}.")]
    return max(found, key=len, default="")


def metrics_tables() -> str:
    parts = []
    for package, rows in metrics_by_package().items():
        parts += [f"### {WHO[package]}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        parts += [f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in rows]
        parts.append("")
    return "\n".join(parts)


def cli_page() -> str:
    cli = importlib.import_module("ateplace.cli.main")
    cli.mount(*cli.ELSEWHERE)
    root = typer.main.get_command(cli.app)
    lines = [
        "# Commands",
        "",
        "`ateplace COMMAND`, or `kubectl ateplace COMMAND` (the same program under a name that kubectl finds).",
        "",
        "It reaches the cluster that kubectl would: by the current context of `$KUBECONFIG` or `~/.kube/config`.",
        "Another file is `--set cluster.kubeconfig=FILE`. Inside a pod it is the pod's ServiceAccount.",
        "",
        "Exit codes, unless a command says more: 0 done; 1 it could not be done, with the reason on standard error;",
        "2 wrong usage or a bad setting; 130 interrupted.",
    ]
    for path, command in _commands(root, "ateplace"):
        text = re.sub(r"\n(?=\S)", " ", (command.help or "").replace("\n\n", "\0")).replace("\0", "\n\n")
        lines += ["", f"## {path}", "", text.strip()]
        rows = [_option(one) for one in command.params if one.param_type_name == "option" and one.name != "help"]
        arguments = [one.metavar or one.name.upper() for one in command.params if one.param_type_name == "argument"]
        if arguments:
            lines += ["", f"Takes: `{' '.join(arguments)}`"]
        if rows:
            lines += ["", "| option | default | meaning |", "|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _commands(command: Any, path: str) -> list[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return [(path, command)]
    return [found for name, one in inner.items() for found in _commands(one, f"{path} {name}")]


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    default = "" if option.default in (None, "", False, [], ()) else f"`{option.default}`"
    return f"| {names} | {default} | {option.help or ''} |"


def modules_page() -> str:
    root = DOCS.parent
    contracts = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers")
    lines = [
        "# Modules",
        "",
        "Every module that is shipped, in layers from top to bottom: each may import those below it, none above, and",
        "the roles do not import each other (`make check`). [architecture.md](architecture.md) says where to begin.",
    ]
    for package in (f"ateplace.{name.strip()}" for layer in layers for name in layer.split("|")):
        place = root / package.replace(".", "/")
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        rows = [_module(path, root) for path in files if path.stem not in {"__init__", "__main__"}]
        if place.is_dir():
            lines += [
                "",
                f"## {package}",
                "",
                _summary(place / "__init__.py"),
                "",
                "| module | what |",
                "|---|---|",
                *rows,
            ]
        else:
            lines += ["", f"## {package}", "", _summary(files[0])]
    return "\n".join(lines) + "\n"


def _module(path: Path, root: Path) -> str:
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    # By a directory's own name: pages on the web do not follow links.
    return f"| [{name}](../{path.resolve().relative_to(root.resolve())}) | {_summary(path)} |"


def _summary(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def versions_table() -> str:
    """Every minor version that the local plane can be of, the newest first; one without a run says so."""
    lines = ["| Kubernetes | tests | what is less there |", "|---|---|---|"]
    runs = json.loads((DOCS / "versions.json").read_text("utf-8"))
    for minor, versions in reversed(SUPPORTED.items()):
        run = runs.get(minor)
        lines.append(f"| {minor} ({_tried(run, versions.kubernetes)}) | {_outcome(run)} | {_lacks(minor)} |")
    return "\n".join(lines) + "\n"


def _tried(run: Any, planned: str) -> str:
    return f"{run['kubernetes']}, etcd {run['etcd']}" if run else planned


def _outcome(run: Any) -> str:
    if run is None:
        return "not run"
    failed = f", **{run['failed']} failed**" if run["failed"] else ""
    skipped = f", {run['skipped']} skipped" if run["skipped"] else ""
    return f"{run['passed']} passed{failed}{skipped} ({run['date']})"


def _lacks(minor: str) -> str:
    major, _, small = minor.partition(".")
    return "; ".join(lacks((int(major), int(small)))) or "nothing"


def fill(page: Path, name: str, text: str) -> str:
    """The page with the part between its markers replaced."""
    begin = BEGIN.format(name)
    before, _, rest = page.read_text("utf-8").partition(begin)
    return f"{before}{begin}\n\n{text}\n{END}{rest.partition(END)[2]}"


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "metrics.md": lambda: fill(DOCS / "metrics.md", "metrics", metrics_tables()),
    "cli.md": cli_page,
    "modules.md": modules_page,
    "../README.md": lambda: fill(DOCS.parent / "README.md", "versions", versions_table()),
}


def main(arguments: list[str]) -> int:
    stale = []
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(text, "utf-8")
    sys.stdout.write("".join(f"{name}\n" for name in stale))
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
