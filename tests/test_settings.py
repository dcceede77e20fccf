from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gossamer import settings as configuration
from gossamer.cli.runner import read_settings
from gossamer.errors import ConfigError
from gossamer.job_folder import save_settings, stored_settings
from gossamer.settings import FIELDS, Settings, SiteSettings, build, dump, from_environment, from_file

HOSTILE = "\x00\x01\t\n\r\x1b\x7f\x85\u2028\u202e\ufeff\U0001f600 ' \" \\ ''' \"\"\" # = [x] \\u0041 é"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder without settings."""
    for name in [name for name in os.environ if name.startswith("GOSSAMER_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults_apply_without_settings() -> None:
    assert build({}) == Settings()
    assert dump(Settings()) == {}


@pytest.mark.parametrize(
    ("values", "names", "hint"),
    [
        ({"dealy": 1}, "dealy", "did you mean delay?"),
        ({"max_page": 1}, "max_page", "did you mean max_pages?"),
        ({"concurency": 1}, "concurency", "did you mean concurrency?"),
        ({"qqqq": 1}, "qqqq", "docs/reference/settings.md lists all settings"),
        ({"sites": {"x.org": {"dely": 1}}}, "dely", ""),
    ],
)
def test_a_typo_is_an_error_that_names_it(values: dict[str, Any], names: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=names) as caught:
        build(values)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"delay": -1}, "delay"),
        ({"delay": "fast"}, "delay"),
        ({"delay": float("nan")}, "delay is nan, but must be a number >= 0"),
        ({"delay": float("inf")}, "delay is inf, but must be at most"),
        ({"commit_seconds": 1e300}, "commit_seconds"),
        ({"revisit_failures": [60.0, "inf"]}, "revisit_failures is inf"),
        ({"sites": {"x.org": {"delay": "inf"}}}, "sites.x.org.delay is inf"),
        ({"browser_loads": ["film"]}, r"browser_loads\[0\] must be one of image, font, media, frame"),
        ({"max_pages": "few"}, "max_pages is 'few', but must be a whole number"),
        ({"tries": 0}, "tries"),
        ({"workers": 0}, "workers"),
        ({"scope": "planet"}, "scope is 'planet', but must be one of site, domain, any"),
        ({"max_pages": 10**30}, "max_pages"),
        ({"robots": "perhaps"}, "robots"),
        ({"recrawl": "budget=0.0/d"}, "recrawl"),
        ({"user_agent": 5}, "user_agent"),
        ({"sites": {"x.org": {"lanes": 0}}}, "lanes"),
        ({"user_agent": "half a \udcff character"}, "not UTF-8"),
        ({"sites": {"x.org": {"headers": {"a": "\ud800"}}}}, "not UTF-8"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_setting(values: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        build(values)


def test_a_wrong_value_that_may_hold_a_password_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="proxy must be a list") as caught:
        build({"proxy": "http://me:hush@proxy.example"})
    assert "hush" not in str(caught.value)


def test_the_environment_sets_the_same_names() -> None:
    values = from_environment(
        {
            "GOSSAMER_DELAY": "2.5",
            "GOSSAMER_MAX_PAGES": "7",
            "GOSSAMER_ROBOTS": "false",
            "GOSSAMER_ALLOW": "/a,/b",
            "PATH": "/bin",
            "gossamer_delay": "9",
        }
    )
    assert build(values) == Settings(delay=2.5, max_pages=7, robots=False, allow=("/a", "/b"))


def test_a_variable_that_sets_nothing_is_an_error_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="GOSSAMER_DEALY") as caught:
        from_environment({"GOSSAMER_DEALY": "1"})
    assert caught.value.hint == "did you mean delay?"


def test_gossamer_toml_goes_before_pyproject(here: Path) -> None:
    assert from_file(here) == {}
    (here / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert from_file(here) == {}
    (here / "pyproject.toml").write_text("[tool.gossamer]\ndelay = 3\n")
    assert from_file(here) == {"delay": 3}
    (here / "gossamer.toml").write_text('tries = 5\n[sites."x.org"]\ndelay = 4\n')
    assert build(from_file(here)) == Settings(tries=5, sites={"x.org": SiteSettings(delay=4.0)})


@pytest.mark.parametrize("content", [b"delay = ", b"[sites", b'user_agent = "\xff"'])
def test_a_broken_file_is_an_error_that_names_it(here: Path, content: bytes) -> None:
    (here / "gossamer.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"gossamer\.toml"):
        from_file(here)


def test_later_source_overrides_earlier_ones(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = here / "job"
    said = [read_settings(job, {}).delay]
    (here / "gossamer.toml").write_text("delay = 2\ntries = 9\n")
    said.append(read_settings(job, {}).delay)
    monkeypatch.setenv("GOSSAMER_DELAY", "3")
    said.append(read_settings(job, {}).delay)
    save_settings(job, Settings(delay=4.0))
    said.append(read_settings(job, {}).delay)
    said.append(read_settings(job, {"delay": 5.0}).delay)
    assert said == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert read_settings(job, {}).tries == Settings().tries, "a job that was started with a default keeps it"


def test_explicit_settings_override_the_spiders(here: Path) -> None:
    spider = here / "spider.py"
    spider.write_text("import gossamer\n\nclass One(gossamer.Spider):\n    settings = {'delay': 2.0, 'tries': 7}\n")
    assert read_settings(None, {"spider": str(spider)}).delay == 2.0
    (here / "gossamer.toml").write_text("delay = 3\n")
    found = read_settings(None, {"spider": str(spider)})
    assert (found.delay, found.tries) == (3.0, 7)


def test_a_job_keeps_its_settings_but_not_its_time_limit(tmp_path: Path) -> None:
    assert stored_settings(tmp_path) == {}
    settings = Settings(max_seconds=5.0, max_pages=3, extract={"t": "h1::text"}, allow=(r"\.html?$", "a|b"))
    save_settings(tmp_path, settings)
    assert build(stored_settings(tmp_path)) == Settings(
        max_pages=3, extract={"t": "h1::text"}, allow=(r"\.html?$", "a|b")
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.toml"]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(agent=texts, name=texts, value=texts, number=st.floats(0, 1e10) | st.sampled_from([1e10, 1e-7, 5e-324]))
@example(agent=HOSTILE, name=HOSTILE, value=HOSTILE, number=1.5)
def test_job_file_round_trips(
    tmp_path_factory: pytest.TempPathFactory, agent: str, name: str, value: str, number: float
) -> None:
    folder = tmp_path_factory.mktemp("job")
    settings = Settings(
        user_agent=agent,
        headers={name: value},
        deny=(value, name),
        delay=number,
        sites={name: SiteSettings(delay=number, lanes=2, headers={value: agent})},
    )
    save_settings(folder, settings)
    assert build(stored_settings(folder)) == settings


def test_every_naughty_string_can_be_a_setting(tmp_path: Path, shared: Path) -> None:
    naughty = json.loads((shared / "suites" / "hostile-strings" / "blns.json").read_text("utf-8"))
    assert len(naughty) > 500
    settings = Settings(deny=tuple(naughty), headers={text: text for text in naughty})
    save_settings(tmp_path, settings)
    assert build(stored_settings(tmp_path)) == settings
    lines = (tmp_path / "job.toml").read_text("utf-8").split("\n")
    assert all(line.split(" = ")[0] in FIELDS for line in lines[1:-1]), "one setting, one line"


def test_a_job_file_that_was_mangled_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("delay = = 1")
    with pytest.raises(ConfigError, match=r"job\.toml") as caught:
        stored_settings(tmp_path)
    assert "--job" in caught.value.hint


def test_a_job_file_is_plain_toml(tmp_path: Path) -> None:
    save_settings(tmp_path, Settings(delay=2.0, robots=False, sites={"x.org": SiteSettings(budget=3)}))
    found = tomllib.loads((tmp_path / "job.toml").read_text("utf-8"))
    assert (found["delay"], found["robots"], found["tries"]) == (2.0, False, 3)
    assert found["sites"] == {"x.org": {"budget": 3}}
    assert "max_pages" not in found


def test_a_site_has_its_own_settings_or_the_jobs() -> None:
    settings = Settings(
        delay=2.0, per_site=3, site_budget=9, sites={"x.org": SiteSettings(delay=0.0, headers={"a": "b"})}
    )
    assert settings.for_site("x.org") == SiteSettings(delay=0.0, lanes=3, budget=9, headers={"a": "b"})
    assert settings.for_site("y.org") == SiteSettings(delay=2.0, lanes=3, budget=9)
    assert configuration.dump(settings)["sites"] == {"x.org": {"delay": 0.0, "headers": {"a": "b"}}}


def test_invalid_recrawl_error_lists_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match="invalid value 'sometimes' for recrawl") as refused:
        build({"recrawl": "sometimes"})
    assert "budget=5000/d" in refused.value.hint
