"""Settings: three sources, one order, nothing unknown."""

from pathlib import Path

import pytest

from ateplace.errors import SettingsError
from ateplace.settings import Settings, load, meanings


def test_without_any_source_every_setting_has_its_default() -> None:
    loaded = load({})
    assert loaded.settings == Settings()
    assert loaded.origins == {}


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("webhook: {port: 1, body_bytes: 2048}\nextender: {port: 2}\nreconciler: {linger: 3}\n")
    environment = {"ATEPLACE_SETTINGS": str(file), "ATEPLACE_WEBHOOK_PORT": "11", "ATEPLACE_EXTENDER_PORT": "12"}
    loaded = load(environment, ["webhook.port=21"])
    assert loaded.settings.webhook.port == 21
    assert loaded.settings.extender.port == 12
    assert loaded.settings.reconciler.linger == 3
    assert loaded.origins == {
        "webhook.port": "flag",
        "webhook.body_bytes": "file",
        "extender.port": "environment",
        "reconciler.linger": "file",
    }


@pytest.mark.parametrize(
    ("environment", "flags", "complaint"),
    [
        ({"ATEPLACE_WEBHOOK_PROT": "1"}, [], r"unknown setting 'webhook.prot' \(environment\)"),
        ({"ATEPLACE_NOTHING": "1"}, [], r"unknown setting 'nothing' \(environment\)"),
        ({}, ["webhook.prot=1"], r"unknown setting 'webhook.prot' \(flag\)"),
        ({}, ["webhook.port"], "--set takes group.field=value"),
        ({}, ["webhook.port=high"], r"'webhook.port' \(flag\)"),
        ({"ATEPLACE_WEBHOOK_PORT": "70000"}, [], r"'webhook.port' \(environment\)"),
        ({}, ["serve.request_deadline=inf"], r"'serve.request_deadline' \(flag\): Input should be a finite number"),
        ({}, ["reconciler.linger=nan"], r"'reconciler.linger' \(flag\): Input should be a finite number"),
        ({}, ["certs.leaf_days=1e9"], r"'certs.leaf_days' \(flag\): Input should be less than or equal to 3650"),
        ({}, ["webhook.init_cpu=10 m"], r"'webhook.init_cpu' \(flag\): .*not a quantity: '10 m'"),
        ({}, ["webhook.init_memory=0"], r"'webhook.init_memory' \(flag\): .*greater than zero"),
        ({}, ["headroom.cpu=-1"], r"'headroom.cpu' \(flag\): .*greater than zero"),
        ({}, ["headroom.memory=much"], r"'headroom.memory' \(flag\): .*not a quantity: 'much'"),
        ({"ATEPLACE_SETTINGS": "/nowhere/settings.yaml"}, [], "cannot read settings"),
    ],
)
def test_what_is_unknown_or_wrong_is_refused_by_name_and_source(
    environment: dict[str, str], flags: list[str], complaint: str
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        load(environment, flags)


@pytest.mark.parametrize("text", ["[1, 2]", "webhook: 3", "webhook: {prot: 1}", "{unclosed", "other: {port: 1}"])
def test_a_file_that_is_not_settings_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError):
        load({}, path=file)


def test_the_kubelets_variables_for_our_own_services_are_no_settings() -> None:
    environment = {
        "ATEPLACE_WEBHOOK_PORT": "tcp://10.0.0.1:8443",
        "ATEPLACE_WEBHOOK_SERVICE_HOST": "10.0.0.1",
        "ATEPLACE_WEBHOOK_SERVICE_PORT_HTTPS": "8443",
        "ATEPLACE_WEBHOOK_PORT_8443_TCP_ADDR": "10.0.0.1",
    }
    assert load(environment).settings == Settings()


def test_every_setting_is_documented() -> None:
    fields = set()
    for group, field in Settings.model_fields.items():
        model = field.annotation
        assert model is not None
        assert model.__doc__, group
        fields |= {f"{group}.{name}" for name in model.model_fields}
    assert set(meanings()) == fields
    assert all(meaning.endswith(".") for meaning in meanings().values())


def numbers() -> list[tuple[str, type, float]]:
    """Every setting that is a number, with its default."""
    return [
        (f"{group}.{name}", one.annotation, one.default)
        for group, field in Settings.model_fields.items()
        for name, one in getattr(field.annotation, "model_fields", {}).items()
        if one.annotation in {int, float}
    ]


@pytest.mark.parametrize(("key", "kind", "default"), numbers(), ids=str)
def test_a_number_has_a_least_and_a_largest_value(key: str, kind: type, default: float) -> None:
    """So large a number would be no limit at all, or one that cannot be added to a time."""
    for value in ("1e9", "inf", "nan", "-1") if kind is float else (str(10**9), "-1"):
        with pytest.raises(SettingsError, match=key):
            load({}, [f"{key}={value}"])
    load({}, [f"{key}={default}"])


def test_a_setting_of_an_earlier_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("substrate:\n  atelet_daemonset: atelet\n")
    with pytest.raises(SettingsError) as failure:
        load({}, path=path)
    assert str(failure.value) == (
        "setting 'substrate.atelet_daemonset' (file) is gone: atelet's DaemonSets are found by the labels of their "
        "pods now: remove this setting, and set substrate.atelet_selector if those are not app=atelet"
    )
