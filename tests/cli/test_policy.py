"""`holdfast policy suggest` and `backtest`: what they print of a store, for people and for programs."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast
from holdfast import cli
from holdfast.policy import PolicyBook
from holdfast.testing import ManualClock

Policy = Callable[..., tuple[int, str, str]]
SLOW = 4.0  # seconds


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "runs.db"


@pytest.fixture
def policy(path: Path, capsys: pytest.CaptureFixture[str]) -> Policy:
    def policy(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(["policy", *arguments, "--store", str(path)])
        return code, *capsys.readouterr()

    return policy


@pytest.fixture
def record(path: Path) -> None:
    """40 good calls of `slow`, 10 failures in a row of `broken`, 2 s apart; two good calls of `rare`."""
    clock = ManualClock()
    with holdfast.open(path, clock=clock, policies={"policy": {"breaker": False, "loop": False}}) as hf:

        @hf.tool()
        def slow() -> None:
            clock.advance(SLOW)

        @hf.tool()
        def broken() -> None:
            clock.advance(1.0)
            raise ConnectionError("no")

        @hf.tool("files.rare")
        def rare() -> None:
            clock.advance(0.1)

        with hf.run("session", "prompt"):
            for _ in range(40):
                slow()
        with hf.run("session", "prompt"):
            for _ in range(10):
                with suppress(ConnectionError):
                    broken()
                clock.advance(1.0)
            rare()
            rare()


@pytest.mark.parametrize("command", ["suggest", "backtest"])
def test_an_empty_store_is_said_to_be_empty_and_not_made(command: str, policy: Policy, path: Path) -> None:
    code, out, err = policy(command)

    assert (code, out) == (0, "")
    assert err.startswith("holdfast: no tool call is on record in ")
    assert not path.exists()


@pytest.mark.parametrize("command", ["suggest", "backtest"])
def test_programs_get_json_of_an_empty_store(command: str, policy: Policy) -> None:
    code, out, _ = policy(command, "--json")

    found = json.loads(out)
    assert (code, found["runs"], found["calls"], found["tools"]) == (0, 0, 0, [])


# --- suggest ---


@pytest.mark.usefixtures("record")
def test_a_suggestion_is_a_good_policy_file_with_a_reason_for_each_value(policy: Policy, tmp_path: Path) -> None:
    code, out, err = policy("suggest")

    file = tmp_path / "suggested.toml"
    file.write_text(out)
    assert (code, err) == (0, "")
    assert PolicyBook.load(file).resolve("slow").timeout == 2 * SLOW
    assert policy_check(file) == 0
    assert "# timeout: 99 of 100 of 40 successes took at most 4 s, the slowest 4 s; twice that, at least 1 s" in out
    assert "#   broken: 10\n#   files.rare: 2\n" in out


def policy_check(file: Path) -> int:
    return cli.main(["policy", "check", str(file)])


@pytest.mark.usefixtures("record")
def test_programs_get_suggestions_with_their_reasons(policy: Policy) -> None:
    _, out, _ = policy("suggest", "--json")

    found = json.loads(out)
    assert (found["runs"], found["calls"], found["whole"]) == (2, 52, True)
    assert [(tool["tool"], tool["calls"]) for tool in found["tools"]] == [
        ("slow", 40),
        ("broken", 10),
        ("files.rare", 2),
    ]
    assert found["tools"][0]["settings"][0]["value"] == 8.0


@pytest.mark.usefixtures("record")
def test_only_the_newest_runs_are_looked_at(policy: Policy) -> None:
    _, out, _ = policy("suggest", "--json", "--last", "1")

    assert [tool["tool"] for tool in json.loads(out)["tools"]] == ["broken", "files.rare"]


# --- backtest ---


@pytest.mark.usefixtures("record")
def test_a_file_is_played_beside_the_defaults_the_worst_tool_first(policy: Policy, tmp_path: Path) -> None:
    file = tmp_path / "strict.toml"
    file.write_text('[tool.slow]\ntimeout = 1\nbreaker = false\nloop = false\n[tool."b*"]\nloop = false\n')

    code, out, _ = policy("backtest", str(file), "--json")

    found = json.loads(out)
    slow, broken, rare = found["tools"]
    assert (code, found["file"]) == (0, str(file))
    assert [slow["tool"], broken["tool"], rare["tool"]] == ["slow", "broken", "files.rare"]
    assert (slow["recorded"]["succeeded"], slow["file"]["timed_out"], slow["file"]["lost"]) == (40, 40, 40)
    assert (slow["defaults"]["succeeded"], slow["defaults"]["lost"]) == (40, 0)
    # Seven failures, asked for 2 s apart, open the circuit for at least 5 s at 13 s: at 14 s, 16 s it is open, at 18 s
    # a probe fails. By default the same call is refused as a loop after three failures.
    assert (broken["file"]["failed"], broken["file"]["circuit"], broken["file"]["spared"]) == (8, 2, 2)
    assert (broken["defaults"]["failed"], broken["defaults"]["loop"]) == (3, 7)


@pytest.mark.usefixtures("record")
def test_the_table_has_the_record_and_both_policies_and_says_what_is_assumed(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("[tool.slow]\ntimeout = 1\nbreaker = false\nloop = false\n")

    code, out, err = policy("backtest")

    rows = [line.split() for line in out.splitlines()]
    assert code == 0
    assert rows[0][:6] == ["tool", "under", "good", "failed", "refused", "lost"]
    assert rows[1] == ["slow", "record", "40"]
    assert rows[2] == ["file", "40", "40", "40", "40", "s"]  # failed, lost, timed out, time in failures
    assert rows[3] == ["defaults", "40"]
    assert "52 calls of 2 runs" in err
    assert "against holdfast.toml" in err
    assert "assumed: Calls come and end as on record" in err


@pytest.mark.usefixtures("record")
def test_what_the_code_has_to_complete_is_not_played_and_keeps_no_other_from_it(policy: Policy, tmp_path: Path) -> None:
    file = tmp_path / "half.toml"
    file.write_text("[tool.slow]\nrate = { burst = 5 }\n[tool.broken]\nbreaker = { failure_threshold = 2 }\n")

    _, out, _ = policy("backtest", str(file), "--json")
    code, _, err = policy("backtest", str(file))

    lines = {line["tool"]: line for line in json.loads(out)["tools"]}
    assert (code, lines["slow"]["file"], lines["broken"]["incomplete"]) == (0, None, None)
    assert lines["broken"]["file"]["circuit"] > 0
    assert "per_second is missing" in lines["slow"]["incomplete"]
    assert "holdfast: not played, as only the code may say the rest: policy of 'slow'" in err


@pytest.mark.usefixtures("record")
def test_without_a_file_the_defaults_alone_are_played(policy: Policy) -> None:
    code, out, err = policy("backtest")

    assert code == 0
    assert {line.split()[0] for line in out.splitlines()} == {"tool", "broken", "slow", "files.rare", "all", "defaults"}
    assert "there is no policy file here" in err


@pytest.mark.usefixtures("record")
def test_the_last_rows_are_all_tools_together(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("[policy]\ntimeout = 1\nbreaker = false\nloop = false\n")

    _, out, _ = policy("backtest")
    _, as_json, _ = policy("backtest", "--json")

    rows, total = [line.split() for line in out.splitlines()], json.loads(as_json)["total"]
    assert rows[-3][:5] == ["all", "tools", "record", "42", "10"]  # good, failed
    assert rows[-2][:4] == ["file", "2", "50", "40"]  # good, failed, lost
    assert (total["recorded"]["calls"], total["file"]["lost"], total["defaults"]["loop"]) == (52, 40, 7)


@pytest.mark.usefixtures("record")
def test_a_file_that_is_not_played_for_all_tools_has_no_total(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("[tool.slow]\nrate = { burst = 5 }\n")

    _, out, _ = policy("backtest", "--json")

    assert json.loads(out)["total"]["file"] is None


@pytest.mark.usefixtures("record")
@pytest.mark.parametrize("width", [40, 50, 80])
def test_on_a_narrow_terminal_what_is_lost_is_shown_whole(
    width: int, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    (tmp_path / "holdfast.toml").write_text("[policy]\ntimeout = 1\n")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())

    cli.main(["policy", "backtest", "--store", str(path)])

    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert "lost" in lines[0].split()
    assert not any("…" in line for line in lines)
    assert max(len(line) for line in lines) <= width


@pytest.mark.parametrize("command", ["check", "backtest"])
def test_a_file_without_a_name_is_told(command: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["policy", command, ""])

    assert code == 1
    assert "the name of the policy file must not be empty" in "".join(capsys.readouterr())


def test_a_bad_file_is_named_with_its_mistake(policy: Policy, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[policy]\ntimeout = -1\n")

    code, out, err = policy("backtest", str(file))

    assert (code, out) == (1, "")
    assert "timeout = -1" in err
