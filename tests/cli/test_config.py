"""`holdfast config`, `policy` and `completion`: what applies here, whether a file is good, and a shell that helps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = """
store = "runs.db"
[policy]
timeout = 30
[tool."search_*"]
rate = "10/s"
[server.github]
deadline = 20
"""


def holdfast(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    env = {**kept, "XDG_CONFIG_HOME": str(folder / "none"), "XDG_DATA_HOME": str(folder / "data"), **environment}
    command = [sys.executable, "-m", "holdfast", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)


def facts(folder: Path, *words: str, **environment: str) -> dict[tuple[str, str], tuple[Any, str]]:
    done = holdfast("config", "show", "--json", *words, folder=folder, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return {(fact["place"], fact["key"]): (fact["value"], fact["origin"]) for fact in json.loads(done.stdout)}


# --- config ---


def test_without_a_file_the_defaults_apply(tmp_path: Path) -> None:
    found = facts(tmp_path)

    assert found["", "store"] == (str(tmp_path / "data" / "holdfast" / "runs.db"), "default")
    assert found["", "policy file"] == (None, "there is none")
    assert found["every tool", "max_wait"] == (5.0, "default")


def test_a_file_here_is_found_and_named_as_the_origin(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text(FILE)

    found = facts(tmp_path, "--tool", "search_web")

    assert found["", "store"] == (str(tmp_path / "runs.db"), "file holdfast.toml")
    assert found["", "policy file"] == ("holdfast.toml", "working directory")
    assert found["every tool", "timeout"] == (30.0, "file holdfast.toml [policy]")
    assert found["github.*", "deadline"] == (20.0, "file holdfast.toml [server.github]")
    assert found["search_web", "rate.per_second"] == (10.0, 'file holdfast.toml [tool."search_*"]')
    assert ("search_web", "timeout") not in found  # as for every tool


def test_the_environment_is_named_as_the_origin(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(FILE)

    found = facts(tmp_path, HOLDFAST_STORE="env.db", HOLDFAST_POLICY="other.toml")

    assert found["", "store"] == ("env.db", "$HOLDFAST_STORE")
    assert found["", "policy file"] == ("other.toml", "$HOLDFAST_POLICY")
    assert facts(tmp_path, "--store", "given.db", HOLDFAST_STORE="env.db")["", "store"] == ("given.db", "--store")


def test_the_password_of_a_store_is_not_shown(tmp_path: Path) -> None:
    found = facts(tmp_path, "--store", "postgresql://me:hunter2@db.example/runs?schema=mine&password=hunter3")

    assert found["", "store"] == ("postgresql://me@db.example/runs?schema=mine", "--store")


@pytest.mark.parametrize("store", ["postgresql:/me:hunter2@db/runs", "mysql://me:hunter2@db/runs"])
def test_a_store_that_there_is_not_is_told_without_its_password(tmp_path: Path, store: str) -> None:
    for words in (("config", "show"), ("runs", "ls"), ("runs", "ls", "--store", store)):
        done = holdfast(*words, folder=tmp_path, HOLDFAST_STORE=store)

        assert done.returncode != 0
        assert "must be a path, ':memory:', sqlite:///PATH or postgresql://" in done.stderr
        assert "hunter2" not in done.stdout + done.stderr


def test_people_get_a_table_with_the_origin_if_they_ask(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text(FILE)

    plain = holdfast("config", "show", folder=tmp_path).stdout
    origin = holdfast("config", "show", "--origin", folder=tmp_path).stdout

    assert "timeout" in plain
    assert "[policy]" not in plain
    assert any(line.split() == ["every", "tool", "timeout", "30.0", "file", "holdfast.toml", "[policy]"]
               for line in origin.splitlines())  # fmt: skip


def test_values_are_shown_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text(
        '[tool.seat]\nfallback.value = { City = ["Oslo", true], token = "hunter2" }'
    )

    shown = holdfast("config", "show", folder=tmp_path).stdout

    assert '{"City":["Oslo",true],"token":' in shown
    assert "hunter2" not in shown


def test_what_is_said_of_a_server_alone_is_shown(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("[server.github]\nhide_open_tools = true\n[server.files]\ntimeout = 3")

    found = facts(tmp_path)

    assert found["github.*", "hide_open_tools"] == (True, "file holdfast.toml")
    assert ("files.*", "hide_open_tools") not in found


def test_what_the_code_has_to_complete_is_shown_as_it_stands_beside_all_others(tmp_path: Path) -> None:
    rules = '[tool."search_*"]\nrate = { burst = 20 }\ncache = false\nread_only = false\n[tool.mail]\ntimeout = 3\n'
    (tmp_path / "holdfast.toml").write_text(rules)

    found = facts(tmp_path)

    assert found["search_*", "rate.burst"] == (20, 'file holdfast.toml [tool."search_*"]')
    assert found["search_*", "cache"] == (None, 'file holdfast.toml [tool."search_*"]')
    assert found["search_*", "read_only"] == (False, 'file holdfast.toml [tool."search_*"]')
    assert "per_second is missing" in found["search_*", "incomplete"][0]
    assert found["mail", "timeout"] == (3.0, "file holdfast.toml [tool.mail]")


def test_what_only_some_names_match_is_not_said_of_every_tool(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text('[tool."[!g]*"]\ntimeout = 3\n[tool."*"]\nmax_wait = 1\n')

    found = facts(tmp_path)

    assert found["every tool", "timeout"] == (None, "default")
    assert found["every tool", "max_wait"] == (1.0, 'file holdfast.toml [tool."*"]')
    assert found["[!g]*", "timeout"] == (3.0, 'file holdfast.toml [tool."[!g]*"]')


def test_a_bad_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("[policy]\ntimeout = -1")

    done = holdfast("config", "show", folder=tmp_path)

    assert done.returncode == 1
    assert "timeout = -1" in done.stderr


# --- policy check ---


def test_a_good_file_is_good(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text(FILE)

    done = holdfast("policy", "check", folder=tmp_path)

    assert (done.returncode, done.stdout) == (0, "")
    assert "holdfast.toml is good" in done.stderr


def test_every_mistake_of_a_file_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("x = 1\n[policy]\ntimeout = -1\n")

    done = holdfast("policy", "check", "bad.toml", folder=tmp_path)
    data = json.loads(holdfast("policy", "check", "bad.toml", "--json", folder=tmp_path).stdout)

    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert len(lines) == 2
    assert data == {"file": "bad.toml", "good": False, "problems": lines, "wants": []}


def test_what_would_stop_a_proxy_is_a_mistake(tmp_path: Path) -> None:
    rules = "[server.a]\nrate = { burst = 5 }\n[server.b.tool.get]\nretry = { initial = 5.0 }\n"
    (tmp_path / "bad.toml").write_text(rules)

    done = holdfast("policy", "check", "bad.toml", folder=tmp_path)

    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "bad.toml: policy of 'a.': rate = {'burst': 5}: per_second is missing (burst: file bad.toml [server.a])",
        "bad.toml: policy of 'b.get': retry = {'initial': 5.0}: max must be a number of at least 5 "
        "(initial: file bad.toml [server.b.tool.get])",
    ]


def test_what_the_code_has_to_complete_is_told_and_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "half.toml").write_text("[tool.search]\nrate = { burst = 20 }\n")

    done = holdfast("policy", "check", "half.toml", folder=tmp_path)

    assert (done.returncode, done.stdout) == (0, "")
    assert "good only if the code says the rest: policy of 'search': rate = {'burst': 20}: per_second" in done.stderr


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('redis = "nix"', "redis: must be an address such as redis://host:6379"),
        ('redis = "redis://:secret@h:port"', "redis = redis://:…@h:…: a port must be a whole number"),
        ('store = "mysql://x"', "store = 'mysql://…': must be a path, ':memory:', sqlite:///PATH or postgresql://"),
        ('store = "sqlite://x.db"', "store = 'sqlite://x.db': must be a path"),
        ('store = "postgresql:/u:secret@h/db"', "store: must be a path, ':memory:', sqlite:///PATH or postgresql://"),
        ('store = "postgresql://h:port/db"', "store: dsn: must be postgresql://"),
    ],
)
def test_an_address_that_leads_nowhere_is_a_mistake_beside_all_others(
    tmp_path: Path, line: str, complaint: str
) -> None:
    (tmp_path / "bad.toml").write_text(f"{line}\n[policy]\ntimeout = -1\n")

    done = holdfast("policy", "check", "bad.toml", folder=tmp_path)

    other, address = done.stdout.splitlines()
    assert (done.returncode, "timeout = -1" in other) == (1, True)
    assert address.startswith(f"bad.toml: {complaint}")


@pytest.mark.parametrize(
    "line",
    ['store = "runs.db"', 'store = "sqlite:///runs.db"', 'store = "postgresql://h/db"', 'redis = "redis://h:6379"'],
)
def test_an_address_is_not_gone_to_when_it_is_checked(tmp_path: Path, line: str) -> None:
    (tmp_path / "good.toml").write_text(line)

    done = holdfast("policy", "check", "good.toml", folder=tmp_path)

    assert (done.returncode, [*tmp_path.iterdir()]) == (0, [tmp_path / "good.toml"])


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    assert holdfast("policy", "check", "none.toml", folder=tmp_path).returncode == 1
    assert holdfast("policy", "check", folder=tmp_path).returncode == 2


# --- completion ---


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_lines(tmp_path: Path, shell: str) -> None:
    done = holdfast("completion", shell, folder=tmp_path)

    assert done.returncode == 0
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in done.stdout


def test_a_shell_that_is_not_known_is_wrong_usage(tmp_path: Path) -> None:
    assert holdfast("completion", "csh", folder=tmp_path).returncode == 2


@pytest.mark.parametrize(("words", "found"), [("holdfast ru", "plain,runs"), ("holdfast runs ca", "plain,cancel")])
def test_commands_are_completed(tmp_path: Path, words: str, found: str) -> None:
    environment = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}

    done = holdfast(folder=tmp_path, _HOLDFAST_COMPLETE="bash_complete", **environment)

    assert found in done.stdout.splitlines()


@pytest.mark.parametrize(
    "words",
    [
        "holdfast policy check a",
        "holdfast policy backtest a",
        "holdfast install a",
        "holdfast runs import a",
        "holdfast runs export -o a",
        "holdfast runs ls --store a",
        "holdfast wrap --policy a",
        "holdfast gateway --config a",
    ],
)
def test_the_shell_completes_files_where_one_is_wanted(tmp_path: Path, words: str) -> None:
    environment = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}

    done = holdfast(folder=tmp_path, _HOLDFAST_COMPLETE="bash_complete", **environment)

    assert done.stdout.splitlines() == ["file,a"]
