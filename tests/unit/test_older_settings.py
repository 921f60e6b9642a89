"""Settings of an older version, from the history, and of this one: each takes what the other ships."""

from pathlib import Path
from typing import Any

import pytest

from ateplace.settings import REMOVED, Settings, load
from tests.deploying import SECOND_SCHEDULER, of_kind, render
from tests.versions import ROOT, answer, command, script, unpack

CHANGED = {"reconciler.unbound_wait"}
"""Settings with another default since. A release waits as long as a scheduler may bind: 600 s instead of 300 s."""
OVERLAY = SECOND_SCHEDULER.relative_to(ROOT)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("older"))


def shipped(overlay: Path) -> dict[str, str]:
    """The settings in an installation's ConfigMap."""
    (found,) = (item for name, item in of_kind(render(overlay), "ConfigMap").items() if "settings" in name)
    return dict(found["data"])


def test_the_older_one_runs_from_its_own_tree(old: Path) -> None:
    """Else everything here would show that this version understands itself."""
    packages = ("ateplace", "webhook", "extender", "reconciler", "certs")
    source = f"import {', '.join(packages)}; print({', '.join(f'{each}.__file__' for each in packages)})"
    assert script(old, source).split() == [str(old / each / "__init__.py") for each in packages]


def test_each_takes_the_settings_that_the_other_ships(old: Path) -> None:
    for data in (shipped(old / OVERLAY), shipped(SECOND_SCHEDULER)):
        theirs = {row["setting"]: row["value"] for row in answer(old, "settings", **data)}
        ours = load(data).settings.model_dump()
        unlike = {key for key, value in theirs.items() if key not in REMOVED and value != _at(ours, key)}
        assert unlike == CHANGED


def test_every_setting_of_the_older_one_that_is_not_gone_is_taken_and_its_default_has_changed_only_on_purpose(
    old: Path,
) -> None:
    rows = [row for row in answer(old, "settings") if row["setting"] not in REMOVED]
    assert len(rows) > 40
    environment = {f"ATEPLACE_{row['setting'].replace('.', '_').upper()}": _text(row["value"]) for row in rows}
    then, now = load(environment).settings.model_dump(), Settings().model_dump()
    unlike = {key for row in rows if _at(then, key := row["setting"]) != _at(now, key)}
    assert unlike == CHANGED


def test_the_older_one_refuses_a_setting_that_it_does_not_know_by_name(old: Path) -> None:
    done = command(old, "extender", ATEPLACE_EXTENDER_TO_COME="1")
    assert done.returncode == 2 and "extender.to_come" in done.stderr


def test_a_setting_that_an_older_installation_does_not_have_has_its_default() -> None:
    """Whichever were added since: this version takes its ConfigMap without any of them."""
    every = {
        f"ATEPLACE_{group}_{field}".upper(): _text(value)
        for group, fields in Settings().model_dump().items()
        for field, value in fields.items()
    }
    assert len(every) > 40 and load(every).settings == Settings()
    for missing in every:
        fewer = {key: value for key, value in every.items() if key != missing}
        assert load(fewer).settings == Settings(), missing


def _at(settings: dict[str, Any], key: str) -> Any:
    group, _, field = key.partition(".")
    return settings[group][field]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
