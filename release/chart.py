"""`python -m release.chart` writes the Helm chart's templates from the manifests; with `--check` it names stale ones.

Each file of `deploy/` becomes one template. An object that an overlay or a component adds, removes or changes stands
under the value that asks for it, and a handful of fields become values. Written by hand are Chart.yaml, values.yaml,
_helpers.tpl, settings.yaml, NOTES.txt, the test of `helm test`, and values.schema.json except for its `settings`.
tests/unit/test_helm_chart.py compares what helm makes of all that with what kustomize makes.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ateplace.errors import LocalError
from ateplace.local import binaries
from ateplace.settings import Settings

Object = dict[str, Any]
Identity = tuple[str, str, str, str]

DEPLOY = Path(__file__).parents[1] / "deploy"
CHART = DEPLOY / "chart"
OVERLAYS, COMPONENTS = DEPLOY / "overlays", DEPLOY / "components"
DEFAULT = (OVERLAYS / "second-scheduler",)
SETTINGS = "ateplace-settings"
DASHBOARD = COMPONENTS / "grafana" / "dashboard.json"
IN_MANIFESTS = {
    "substrate.pool_label",
    "substrate.atelet_namespace",
    "substrate.atelet_selector",
    "cluster.namespace",
    "certs.scheduler_deployment",
    "extender.client_name",
}
"""Settings whose value stands in manifests too (docs/operations.md): the templates would not follow such a value."""
MARK = re.compile(r"^(?P<indent>[ -]*)(?P<key>[\w.-]+): HELM(?P<number>\d+)HELM$", re.MULTILINE)
HEADER = "{{{{- /* Written by release/chart.py from deploy/{}: change that, then say `make chart`. */ -}}}}\n"


class Option(NamedTuple):
    """What a value asks for when it is (not) set, and the kustomization that has it."""

    value: str
    resources: tuple[Path, ...] = DEFAULT
    components: tuple[Path, ...] = ()
    when: bool = True

    def condition(self, *, asked: bool) -> str:
        """A template's condition that it is, or is not, asked for."""
        return self.value if asked == self.when else f"not {self.value}"


OPTIONS = (
    Option(".Values.scheduler.enabled", (OVERLAYS / "kube-scheduler-config",), when=False),
    Option(".Values.certManager.enabled", (OVERLAYS / "cert-manager",)),
    Option(".Values.monitors.enabled", components=(COMPONENTS / "prometheus",)),
    Option(".Values.dashboard.enabled", components=(COMPONENTS / "grafana",)),
    Option(".Values.overprovisioner.enabled", (*DEFAULT, COMPONENTS / "overprovisioner-only")),
)
Variants = list[tuple[Option, Object | None]]
"""One object, as each option has it."""


class Marks:
    """Template expressions in an object, as strings that survive YAML, and put back into its text."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def scalar(self, expression: str) -> str:
        """A field's value."""
        return self._mark(f" {{{{ {expression} }}}}")

    def block(self, value: str) -> str:
        """A field's value that is a map or a list."""
        return self._mark(f"\n{{indent}}  {{{{- toYaml {value} | nindent {{depth}} }}}}")

    def optional(self, value: str, field: str = "") -> dict[str, str]:
        """A field that is there when the value is not empty; without a name, the value's own fields."""
        inner = [f"{{indent}}{field}:", "{indent}  {{- toYaml . | nindent {depth} }}"]
        lines = inner if field else ["{indent}{{- toYaml . | nindent {level} }}"]
        text = self._mark("\n".join([f"{{indent}}{{{{- with {value} }}}}", *lines, "{indent}{{- end }}"]))
        return {f"HELM-{text}": text}

    def _mark(self, text: str) -> str:
        self._texts.append(text)
        return f"HELM{len(self._texts) - 1}HELM"

    def written(self, text: str) -> str:
        """A document's text with the expressions in it; braces that were there before are not helm's."""
        return MARK.sub(self._expand, text.replace("{{", '{{ "{{" }}'))

    def _expand(self, found: "re.Match[str]") -> str:
        text = self._texts[int(found["number"])]
        depth = len(found["indent"])
        for name, value in (("indent", " " * depth), ("depth", str(depth + 2)), ("level", str(depth))):
            text = text.replace(f"{{{name}}}", value)
        return text if found["key"].startswith("HELM-") else f"{found['indent']}{found['key']}:{text}"


def build(option: Option) -> dict[Identity, Object]:
    """The objects of a kustomization."""
    with tempfile.TemporaryDirectory() as directory:

        def relative(paths: tuple[Path, ...]) -> list[str]:
            return [os.path.relpath(path, Path(directory).resolve()) for path in paths]

        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": relative(option.resources),
            "components": relative(option.components),
        }
        (Path(directory) / "kustomization.yaml").write_text(yaml.safe_dump(document))
        command = [str(binaries.resolve()["kubectl"]), "kustomize", directory]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise LocalError(f"kustomize: {done.stderr.strip()}")
    # Only this name is made anew by helm, from the values; the hash is the same for every object that names it.
    text = re.sub(rf"\b{SETTINGS}-[a-z0-9]{{10}}\b", SETTINGS, done.stdout)
    return {identity(each): each for each in yaml.safe_load_all(text) if each}


def identity(item: Object) -> Identity:
    meta = item["metadata"]
    return item["apiVersion"], item["kind"], meta.get("namespace", ""), meta["name"]


def sources() -> dict[tuple[str, str], str]:
    """The manifest of each object, relative to `deploy/`, by its kind and name."""
    found = {("ConfigMap", "ateplace-dashboard"): "components/grafana/dashboard.json"}
    for path in [*DEPLOY.glob("base/*.yaml"), *DEPLOY.glob("scheduler/*.yaml"), *DEPLOY.glob("components/*/*.yaml")]:
        for each in yaml.safe_load_all(path.read_text("utf-8")):
            if "$patch" not in each and "name" in each.get("metadata", {}):
                found[each["kind"], each["metadata"]["name"]] = str(path.relative_to(DEPLOY))
    return found


def templates() -> dict[str, str]:
    """Every generated file of the chart, by its path within."""
    default = build(Option(""))
    others = [(option, build(option)) for option in OPTIONS]
    files: dict[str, list[str]] = {}
    origins: dict[str, str] = {}
    known = sources()
    for key in dict.fromkeys([*default, *(key for _, objects in others for key in objects)]):
        usual = default.get(key)
        variants: Variants = [(option, objects.get(key)) for option, objects in others]
        found = usual or next(item for _, item in variants if item)
        if found["kind"] == "Namespace" and key in default:
            continue  # helm makes the namespace of a release
        if key[3] == SETTINGS:
            files["_settings.tpl"] = [settings(found, variants)]
            continue
        origin = known.get((found["kind"], found["metadata"]["name"]), "scheduler/second-scheduler.yaml")
        name = template_name(origin)
        origins[name] = origin
        files.setdefault(name, []).append(conditional(usual, variants))
    texts = {name: "---\n".join(documents) for name, documents in files.items()}
    headed = {name: HEADER.format(origins[name]) + text if name in origins else text for name, text in texts.items()}
    return {f"templates/{name}": text for name, text in headed.items()} | {
        "files/dashboard.json": DASHBOARD.read_text("utf-8"),
        "values.schema.json": schema(),
    }


def template_name(origin: str) -> str:
    """`base/webhook.yaml` is `webhook.yaml`; a component's file carries the component's name."""
    path = Path(origin).with_suffix(".yaml")
    named = path.parts[0] != "components" or path.stem in path.parent.name
    return path.name if named else f"{path.parent.name}-{path.name}"


def conditional(usual: Object | None, variants: Variants) -> str:
    """An object's text, under the value that it depends on. No object depends on two, except for the settings."""
    differing = [(option, item) for option, item in variants if item != usual]
    if not differing:
        return text_of(usual)
    ((option, item),) = differing
    if usual is None or item is None:
        return f"{{{{- if {option.condition(asked=item is not None)} }}}}\n{text_of(item or usual)}{{{{- end }}}}\n"
    text = f"{{{{- if {option.condition(asked=True)} }}}}\n{text_of(item)}"
    return f"{text}{{{{- else }}}}\n{text_of(usual)}{{{{- end }}}}\n"


def text_of(item: Object | None) -> str:
    assert item is not None  # noqa: S101 - for mypy
    marks = Marks()
    parametrise(item, marks)
    return marks.written(yaml.dump(item, Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True))


def parametrise(item: Object, marks: Marks) -> None:
    """Put values in place of what people change."""
    kind, name = item["kind"], item["metadata"]["name"].removeprefix("ateplace-")
    if kind == "Deployment":
        values = f".Values.{name}"
        pod = item["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        item["spec"]["replicas"] = marks.scalar(f"{values}.replicas")
        container["resources"] = marks.block(f"{values}.resources")
        if name == "scheduler":
            container["image"] = marks.scalar(f'include "ateplace.schedulerImage" (list . "{container["image"]}")')
        elif name != "overprovisioner":
            container["image"] = marks.scalar('include "ateplace.image" .')
            container["envFrom"][0]["configMapRef"]["name"] = marks.scalar('include "ateplace.settingsName" .')
        for field in ("imagePullSecrets", "tolerations"):
            pod |= marks.optional(f".Values.{field}", field)
    elif kind == "MutatingWebhookConfiguration":
        (hook,) = item["webhooks"]
        hook["failurePolicy"] = marks.scalar(".Values.webhook.failurePolicy")
    elif item["apiVersion"].startswith("monitoring.coreos.com/"):
        item["metadata"]["labels"] |= marks.optional(".Values.monitors.labels")
    elif name == "dashboard":
        (file,) = item["data"]
        item["data"][file] = marks.scalar('.Files.Get "files/dashboard.json" | toJson')


class Dumper(yaml.SafeDumper):
    """Texts of several lines as such; lists indented, as our manifests have them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


Dumper.add_representer(str, _text)


def settings(usual: Object, variants: Variants) -> str:
    """The settings as a map of environment variables: the base's literals, then the values', then the options'."""
    lines = [
        "{{- /* Written by release/chart.py from the settings in deploy/: change those, then say `make chart`. */ -}}",
        '{{- define "ateplace.settings" -}}',
        "{{- $data := dict }}",
        *_set(usual["data"]),
        "{{- range $group, $fields := .Values.settings }}",
        "{{- range $field, $value := $fields }}",
        '{{- $name := printf "ATEPLACE_%s_%s" ($group | upper) ($field | upper) }}',
        '{{- $_ := set $data $name (include "ateplace.scalar" $value) }}',
        "{{- end }}",
        "{{- end }}",
    ]
    for option, item in variants:
        changed = {key: value for key, value in (item or usual)["data"].items() if usual["data"].get(key) != value}
        if changed:
            lines += [f"{{{{- if {option.condition(asked=True)} }}}}", *_set(changed), "{{- end }}"]
    return "\n".join([*lines, "{{- toYaml $data }}", "{{- end }}", ""])


def _set(data: Mapping[str, str]) -> list[str]:
    return [f"{{{{- $_ := set $data {json.dumps(key)} {json.dumps(value)} }}}}" for key, value in data.items()]


def schema() -> str:
    """The values' schema with the settings as ateplace's own model has them, but for those that templates name too."""
    document = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    model = Settings.model_json_schema()
    groups = {}
    for group, reference in model["properties"].items():
        found = model["$defs"][reference["$ref"].rpartition("/")[2]]
        fields = {
            name: {key: value for key, value in field.items() if key != "title"}
            for name, field in found["properties"].items()
            if f"{group}.{name}" not in IN_MANIFESTS
        }
        groups[group] = {"type": "object", "additionalProperties": False, "properties": fields}
    document["properties"]["settings"]["properties"] = groups
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def main(*, check: bool) -> int:
    """1 when files are stale and were to be checked only."""
    wanted = templates()
    stale = []
    for name, text in wanted.items():
        path = CHART / name
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(name)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
    by_hand = {
        "templates/_helpers.tpl",
        "templates/NOTES.txt",
        "templates/settings.yaml",
        "templates/tests/health.yaml",
    }
    present = {str(path.relative_to(CHART)) for path in CHART.glob("templates/**/*") if path.is_file()}
    for name in sorted(present - by_hand - set(wanted)):
        stale.append(name)
        if not check:
            (CHART / name).unlink()
    sys.stdout.write("".join(f"{'stale' if check else 'written'}: deploy/chart/{name}\n" for name in stale))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(check=sys.argv[1:] == ["--check"]))
