"""The command line as a process: exit codes, what goes where, and that help is cheap because it loads nothing."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import click
import pytest

import holdfast
from holdfast import cli
from holdfast.errors import ConfigError

HOLDFAST = Path(sys.executable).with_name("holdfast")

Plant = Callable[[Callable[[], object]], str]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Plants a command that does what it is given, and answers its name."""

    def plant(work: Callable[[], object]) -> str:
        module = ModuleType("holdfast.cli.planted")
        module.planted = click.command("planted")(work)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(cli, "COMMANDS", {**cli.COMMANDS, "planted": "Only here for a test."})
        return "planted"

    return plant


def test_help_is_data_and_names_every_command() -> None:
    done = run("--help")

    assert (done.returncode, done.stderr) == (0, "")
    words = " ".join(done.stdout.split())
    assert all(f" {name} {summary}" in words for name, summary in cli.COMMANDS.items())


def test_help_loads_nothing_that_the_package_and_click_have_not_loaded_anyway() -> None:
    anyway = loaded_by("import click, holdfast; click.Group().main(['--help'], standalone_mode=False)")

    loaded = loaded_by("from holdfast.cli import main; main(['--help'])")

    assert loaded - anyway == {"holdfast.cli", "holdfast.version"}


@pytest.mark.parametrize("library", ["rich", "importlib.metadata", "holdfast.demo", "holdfast.testing"])
def test_help_does_not_load_what_only_commands_need(library: str) -> None:
    assert library not in loaded_by("from holdfast.cli import main; main(['--help'])")


def test_a_usage_error_loads_no_command() -> None:
    loaded = loaded_by("from holdfast.cli import main; main(['no-such-command'])")

    assert {name for name in loaded if name.startswith("holdfast.cli")} == {"holdfast.cli"}


@pytest.mark.skipif(not hasattr(click, "NoSuchCommand"), reason="this click likens nothing")
def test_a_mistyped_command_is_likened_to_those_that_there_are() -> None:
    assert "Did you mean 'doctor'?" in run("docter").stderr


@pytest.mark.parametrize("group", ["runs", "tools", "policy", "config"])
def test_the_summary_of_no_command_is_cut(group: str) -> None:
    _, _, commands = run(group, "--help").stdout.partition("Commands:")

    assert commands
    assert "..." not in commands


def test_a_configuration_that_is_not_there_is_told_in_words() -> None:
    assert run("gateway", "--config", "no-such.json").stderr.endswith("Error: no-such.json: does not exist\n")


def test_the_version_is_that_of_the_package() -> None:
    done = run("--version")

    assert (done.returncode, done.stdout) == (0, f"holdfast {version('holdfast')}\n")


def test_the_version_is_known_where_the_code_was_copied_and_nothing_is_installed(tmp_path: Path) -> None:
    for package in (click, holdfast):
        assert package.__file__ is not None
        (tmp_path / package.__name__).symlink_to(Path(package.__file__).parent)

    done = subprocess.run(
        [sys.executable, "-S", "-m", "holdfast", "--version"],  # without site-packages
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip

    assert (done.stdout, done.stderr) == (f"holdfast {version('holdfast')}\n", "")


@pytest.mark.parametrize("arguments", [["no-such-command"], ["--no-such-option"], ["demo", "--seed", "many"]])
def test_wrong_usage_ends_with_2_and_says_why_on_stderr(arguments: list[str]) -> None:
    done = run(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[-1].lstrip("-") in done.stderr


def test_a_reader_that_goes_away_is_no_reason_for_a_traceback() -> None:
    read, write = os.pipe()
    os.close(read)

    done = subprocess.run([HOLDFAST, "--help"], stdout=write, stderr=subprocess.PIPE, text=True, check=False)

    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a disk that is always full")
def test_a_disk_that_is_full_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([HOLDFAST, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert (done.returncode, done.stderr) == (1, "holdfast: No space left on device\n")


def test_a_file_that_may_not_grow_is_one_line(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run(
            [HOLDFAST, "--help"], stdout=out, stderr=subprocess.PIPE, text=True, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        )  # fmt: skip

    assert (done.returncode, done.stderr) == (1, "holdfast: File too large\n")


def test_what_a_terminal_cannot_show_is_replaced(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(terminal, encoding="ascii"))

    code = cli.main([plant(lambda: sys.stdout.write("3 × 3") and sys.stdout.flush())])

    assert (code, terminal.getvalue()) == (0, b"3 ? 3")


@pytest.mark.parametrize("closed", [0, 1, 2])
@pytest.mark.parametrize("arguments", [["config", "show"], ["policy", "check"], ["runs", "prune", "--max-runs", "1"]])
def test_a_stream_that_is_closed_is_no_reason_for_a_traceback(arguments: list[str], closed: int) -> None:
    with_streams = subprocess.run([HOLDFAST, *arguments], capture_output=True, text=True, input="", check=False)

    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}>&-', "sh", HOLDFAST, *arguments], capture_output=True, text=True, check=False
    )

    expected = (with_streams.returncode, "" if closed == 1 else with_streams.stdout)
    assert (done.returncode, done.stdout) == expected
    assert done.stderr == ("" if closed == 2 else with_streams.stderr)


@pytest.mark.parametrize(
    "arguments", [["run", "agent:main"], ["worker", "agent:main", "--drain"], ["runs", "export", "-o", "out.jsonl"]]
)
def test_a_working_directory_that_is_gone_is_told_where_it_is_needed(arguments: list[str], tmp_path: Path) -> None:
    done = run_nowhere(tmp_path, *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "holdfast: the working directory is gone: change to one that is there\n"


def test_a_store_whose_working_directory_is_gone_says_so(tmp_path: Path) -> None:
    done = run_nowhere(tmp_path, "runs", "ls", "--store", "runs.db")

    said = "path = 'runs.db': the working directory is gone, or may not be read; give a path from /"
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr == f"Usage: holdfast runs ls [OPTIONS]\nTry 'holdfast runs ls --help' for help.\n\nError: {said}\n"
    )


@pytest.mark.parametrize("arguments", [["install", "cursor"], ["runs", "ls"], ["doctor"]])
def test_a_working_directory_that_is_gone_is_no_matter_to_who_does_not_need_it(
    arguments: list[str], tmp_path: Path
) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text('{"mcpServers": {}}')

    assert run_nowhere(tmp_path, *arguments).returncode == 0


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_command_is_where_its_name_says_and_its_summary_is_its_own(name: str) -> None:
    command = cli.holdfast.get_command(click.Context(cli.holdfast), name)

    assert command is not None
    assert command.get_short_help_str(limit=200) == cli.COMMANDS[name]


def test_every_option_says_what_it_is_for() -> None:
    silent = [f"{name} {option.opts[0]}" for name, option in options_below(cli.holdfast) if not option.help]

    assert silent == []


def test_an_error_of_holdfast_is_one_line_on_stderr(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise ConfigError("holdfast.toml: timeout = -1\nholdfast.toml: retry = 0")

    code = cli.main([plant(work)])

    assert code == 2  # whoever uses it must say something else
    assert capsys.readouterr() == ("", "holdfast: holdfast.toml: timeout = -1; holdfast.toml: retry = 0\n")


def test_an_interrupt_ends_with_130(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise KeyboardInterrupt

    code = cli.main([plant(work)])

    assert code == 130
    assert capsys.readouterr().err.strip() == "holdfast: interrupted"


def test_that_there_can_be_no_more_threads_is_told_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    code = cli.main(["worker", "json:dumps", "--store", str(tmp_path / "runs.db")])

    assert code == cli.FAILED
    assert capsys.readouterr().err.endswith("raise the limit on processes of this user or container\n")


@pytest.mark.parametrize("arguments", [["demo"], ["doctor", "--torture", "1"]])
def test_where_there_is_no_temporary_folder_that_is_told(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", look)

    assert cli.main(arguments) == cli.FAILED
    assert "found in ['/tmp']: name one that can be written, as $TMPDIR" in capsys.readouterr().err


def test_a_module_in_a_folder_that_may_not_be_read_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything

    assert cli.main(["run", "nowhere:main", "--store", ":memory:"]) == cli.WRONG_USAGE
    assert f"looked for in {tmp_path}, which this user may not read, then" in capsys.readouterr().err


def test_any_other_error_keeps_its_traceback(plant: Plant) -> None:
    def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cli.main([plant(work)])


@pytest.mark.parametrize(("answer", "code"), [(None, 0), (0, 0), (3, 3)])
def test_what_a_command_returns_is_the_exit_code(plant: Plant, answer: int | None, code: int) -> None:
    assert cli.main([plant(lambda: answer)]) == code


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HOLDFAST, *arguments], capture_output=True, text=True, check=False)


def run_nowhere(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in a folder that is gone; the user's own things are at *home*."""
    script = 'mkdir "$HOME/gone" && cd "$HOME/gone" && rmdir "$HOME/gone" && exec "$@"'
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))}
    return subprocess.run(
        ["sh", "-c", script, "sh", HOLDFAST, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**kept, "HOME": str(home)},
    )


def options_below(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    """All options of *command* and of those in its group, each with the name of its command."""
    for option in command.params:
        if isinstance(option, click.Option):
            yield command.name or "", option
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (each := command.get_command(context, name)) is not None:
                yield from options_below(each)


@cache
def loaded_by(code: str) -> set[str]:
    """The modules that a fresh process has loaded after *code*."""
    probe = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))
