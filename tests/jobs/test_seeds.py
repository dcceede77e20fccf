"""Seeds of a crawl: strings, files, iterables, and names without a scheme."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas
import pytest

from gossamer.cli.runner import read_seeds_file
from gossamer.errors import ConfigError
from gossamer.job_folder import collect_seeds, seed_lines

A, B, C = "https://a.example/", "https://b.example/", "https://c.example/x?q=1"


def test_seeds_may_be_strings_lists_iterables_and_dataframe_columns(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"url": [A, "b.example"], "rank": [1, 2]})
    for given in (
        [A, B],
        [[A, B]],
        [(A, "b.example")],
        [iter([A, B])],
        [frame["url"]],
        [frame.url.to_numpy()],
        [{A: 1, B: 2}],
    ):
        assert collect_seeds(given) == [A, B]
    assert collect_seeds(["a.example", "http://b.example"]) == [A, "http://b.example/"]
    assert collect_seeds([]) == collect_seeds([[]]) == collect_seeds(["", "  "]) == []


def test_seeds_may_be_a_file_with_comments_and_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "seeds.txt"
    file.write_text(f"\ufeff# our shops\n{A}\n\n   b.example   # the second one\n\t# none\n{C}#part\n", "utf-8")
    assert collect_seeds([file]) == [A, B, C]
    assert collect_seeds([C, file]) == [C, A, B, C]
    assert seed_lines("#x\n\n # y\n") == []


def test_the_command_line_reads_seeds_files_in_the_same_way() -> None:
    assert read_seeds_file(io.StringIO(f"# one\n{A} # two\n\n{B}\n")) == [A, B]


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        (Path("none/seeds.txt"), "seeds file none/seeds.txt: No such file", "a seeds file as a Path"),
        (pandas.DataFrame({"url": [A]}), "a DataFrame is not a list of seeds", "crawl(frame['url'])"),
        (pandas.Series([A, None]), "is not a seed URL: it is not a string", "dropna()"),
        (b"https://a.example", "is not a seed", "pass a URL"),
        (3, "3 is not a seed", "pass a URL"),
        ("https://", "'https://' is not a valid seed URL", "https://example.com/"),
    ],
)
def test_an_unusable_seed_is_rejected_with_a_hint(given: Any, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        collect_seeds([given])
    assert message in str(error.value)
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("http:/a.example/x", "http://a.example/x"),
        ("https//a.example/", "https://a.example/"),
        ("HTTP:a.example", "http://a.example/"),
        ("http:127.0.0.1:8000/", "http://127.0.0.1:8000/"),
        ("http:\\\\a.example", "http://a.example/"),
    ],
)
def test_a_mistyped_scheme_is_rejected_and_the_url_suggested(given: str, meant: str) -> None:
    with pytest.raises(ConfigError) as error:
        collect_seeds([given])
    assert error.value.hint == f"did you mean {meant}"


@pytest.mark.parametrize("given", ["./x.txt", "../x", "/tmp/x.txt", ".", "~/x"])
def test_a_path_is_no_seed_url(given: str) -> None:
    with pytest.raises(ConfigError, match="is a path"):
        collect_seeds([given])


def test_hosts_that_resemble_schemes_and_paths_are_seeds() -> None:
    given = ["http:8080/x", "https.example", "//a.example/", "http:///a.example"]
    found = ["https://http:8080/x", "https://https.example/", A, "http://a.example/"]
    assert collect_seeds(given) == found


def test_an_invalid_line_of_a_seeds_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "seeds.txt"
    file.write_text(f"# shops\n{A}\n\nhttp:/b.example/\n")
    with pytest.raises(ConfigError, match=r"seeds\.txt, line 4: 'http:/b.example/' is not a valid seed URL") as error:
        collect_seeds([file])
    assert error.value.hint == "did you mean http://b.example/"


def test_a_seeds_file_must_be_utf_8(tmp_path: Path) -> None:
    (tmp_path / "seeds.txt").write_bytes(b"https://a.example/\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        collect_seeds([tmp_path / "seeds.txt"])
