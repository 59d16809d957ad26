"""`holdfast install` and `holdfast uninstall` on real files: whole or not at all, and nothing of the user's is lost."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import cli
from holdfast.cli.install import executable
from holdfast.errors import ConfigError
from holdfast.mcp.clients.jsonc import parse, plain
from holdfast.mcp.clients.saving import load, save

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
CONFIG = """\
{
  // what I use every day
  "mcpServers": {
    "files": { "command": "npx", "args": ["-y", "server-files"] },
    "old": { "type": "sse", "url": "https://h/sse" },
  },
}
"""


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a working directory of one's own, side by side."""
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / ".config"))
    return tmp_path / "home"


@pytest.fixture
def file(home: Path) -> Path:
    path = home / "mcp.json"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> Done:
        code = cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run


def servers(path: Path) -> Any:
    return plain(parse(path.read_text(), "file"))["mcpServers"]  # type: ignore[index]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- what is written ---


def test_a_file_is_installed_with_the_absolute_path_of_this_holdfast(file: Path, run: Run) -> None:
    done = run("install", file)

    assert done.code == 0
    assert servers(file)["files"] == {
        "command": HOLDFAST,
        "args": ["wrap", "--name", "files", "--", "npx", "-y", "server-files"],
    }


def test_one_line_says_what_became_of_each_server(file: Path, run: Run) -> None:
    done = run("install", file)

    first, second = done.out.splitlines()
    assert first.split() == ["wrapped", "files"]
    assert second.startswith("left alone   old: HTTP+SSE")
    assert done.err == f"holdfast: {file} as it was is in {file}.holdfast-backup; restart the client\n"


def test_a_server_over_http_is_left_alone_where_it_could_not_be_run(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "mcp.json"
    file.write_text('{"mcpServers": {"far": {"url": "https://h/mcp"}}}')
    monkeypatch.setitem(sys.modules, "aiohttp", None)

    done = run("install", file)

    assert done.out == "left alone   far: servers over HTTP need an extra: pip install 'holdfast[http]'\n"
    assert servers(file)["far"] == {"url": "https://h/mcp"}


def test_uninstalling_gives_back_the_same_bytes(file: Path, run: Run) -> None:
    run("install", file)

    done = run("uninstall", file)

    assert done.out.splitlines()[0].split() == ["unwrapped", "files"]
    assert file.read_text() == CONFIG


def test_installing_again_writes_nothing(file: Path, run: Run) -> None:
    run("install", file)
    before, there = file.stat(), names(file.parent)

    done = run("install", file)

    assert (done.code, done.out.split()[:2]) == (0, ["already", "files"])
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert names(file.parent) == there


def test_a_dry_run_shows_a_diff_and_writes_nothing(file: Path, run: Run) -> None:
    done = run("install", "--dry-run", file)

    assert done.code == 0
    assert done.out.splitlines()[:3] == [f"--- {file}", f"+++ {file}", "@@ -1,7 +1,7 @@"]
    assert f'+    "files": {{ "command": "{HOLDFAST}", "args": ["wrap", ' in done.out
    assert "wrapped      files" in done.err
    assert (file.read_text(), names(file.parent)) == (CONFIG, ["mcp.json"])


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
@pytest.mark.parametrize("text", [CONFIG, CONFIG.rstrip(), CONFIG.replace("\n", "\r\n")], ids=["lf", "no end", "crlf"])
def test_the_diff_is_one_that_can_be_applied(file: Path, run: Run, text: str) -> None:
    file.write_bytes(text.encode())
    diff = run("install", "--dry-run", file).out

    subprocess.run(["patch", "--binary", "-s", str(file)], input=diff.encode(), check=True)

    patched = file.read_bytes()
    file.write_bytes(text.encode())
    run("install", file)
    assert file.read_bytes() == patched


@pytest.mark.parametrize("plain", [True, False], ids=["NO_COLOR", "colour"])
def test_a_diff_on_a_terminal_has_colours_unless_they_are_not_wanted(file: Path, plain: bool) -> None:
    out = in_a_terminal("install", "--dry-run", file, NO_COLOR="1" if plain else "")

    assert ("\x1b[32m+" in out) is not plain
    assert "+    " in out


def test_json_tells_all_of_it(file: Path, run: Run) -> None:
    told = json.loads(run("install", file, "--json").out)

    assert told["servers"][0] == {"name": "files", "project": None, "outcome": "wrapped", "why": None}
    assert (told["file"], told["changed"], told["backup"]) == (str(file), True, f"{file}.holdfast-backup")


def test_json_of_a_dry_run_has_the_diff(file: Path, run: Run) -> None:
    told = json.loads(run("install", file, "--json", "--dry-run").out)

    assert (told["changed"], told["backup"]) == (False, None)
    assert told["diff"].startswith(f"--- {file}\n")


def test_only_the_named_servers_are_installed(file: Path, run: Run) -> None:
    file.write_text('{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}, "c": {"command": "z"}}}')

    run("install", file, "--server", "a", "--server", "c")

    assert [len(entry.get("args", [])) for entry in json.loads(file.read_text())["mcpServers"].values()] == [5, 0, 5]


def test_a_server_that_is_not_there_is_wrong_usage(file: Path, run: Run) -> None:
    done = run("install", file, "--server", "no")

    assert done.code == 2
    assert "lists no server 'no', only files, old" in done.err
    assert file.read_text() == CONFIG


def test_names_cannot_act_on_a_terminal(file: Path, run: Run) -> None:
    file.write_text('{"mcpServers": {"\\u001b[31m\\u202e": {"command": "x"}}}')

    done = run("install", file)

    assert done.out.split() == ["wrapped", "\\x1b[31m\\u202e"]


def test_a_mark_at_the_beginning_and_line_ends_stay(file: Path, run: Run) -> None:
    data = b"\xef\xbb\xbf" + CONFIG.replace("\n", "\r\n").encode()
    file.write_bytes(data)

    run("install", file)

    installed = file.read_bytes()
    assert installed.startswith(b"\xef\xbb\xbf{\r\n")
    assert installed.count(b"\n") == installed.count(b"\r\n") == data.count(b"\n")


# --- what cannot be read ---


def test_bad_syntax_is_told_with_its_place_and_changes_nothing(file: Path, run: Run) -> None:
    file.write_text(CONFIG.replace('"npx",', '"npx"'))

    done = run("install", file)

    assert (done.code, done.out) == (1, "")
    assert done.err == f"holdfast: {file}:4:33: expected , or }}, found '\"'\n"
    assert names(file.parent) == ["mcp.json"]


@pytest.mark.parametrize("name", ["no.json", "./no", "/no/such/file"])
def test_a_file_that_does_not_exist_is_an_error(home: Path, run: Run, name: str) -> None:
    assert run("install", name) == (1, "", f"holdfast: {name}: does not exist\n")


def test_a_word_that_is_neither_a_file_nor_a_client_is_wrong_usage(home: Path, run: Run) -> None:
    done = run("uninstall", "zed")

    assert done.code == 2
    assert "'zed' is neither a file nor a known client: claude-desktop, cursor, vscode, claude-code" in done.err


def test_a_folder_is_no_configuration(home: Path, run: Run) -> None:
    assert run("install", home) == (1, "", f"holdfast: {home}: is a directory\n")


def test_a_pipe_is_not_waited_for(home: Path, run: Run) -> None:
    os.mkfifo(home / "pipe.json")

    assert run("install", home / "pipe.json") == (1, "", f"holdfast: {home}/pipe.json: is no regular file\n")


def test_a_link_that_leads_nowhere_is_told(home: Path, run: Run) -> None:
    (home / "loop.json").symlink_to("loop.json")

    done = run("install", home / "loop.json")

    assert (done.code, done.out) == (1, "")
    assert "loop.json: cannot be read: " in done.err


def test_what_is_far_too_long_for_a_configuration_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.mcp.clients.saving.MOST_BYTES", len(CONFIG.encode()))
    load(str(file))

    file.write_text(CONFIG + " ")

    with pytest.raises(ConfigError, match="is larger than"):
        load(str(file))


def test_what_is_not_utf_8_is_told_with_its_line(file: Path, run: Run) -> None:
    file.write_bytes(b'{\n"a": "\xff"}')

    assert run("install", file) == (1, "", f"holdfast: {file}:2: is not UTF-8 text\n")


def test_a_file_without_servers_is_said_to_have_none(file: Path, run: Run) -> None:
    file.write_text('{"theme": "dark"}')

    assert run("install", file) == (0, "", f"holdfast: {file} lists no MCP servers\n")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("config.toml", '[mcp_servers.a]\ncommand = "npx"\n', "is TOML, and only JSON is read"),
        ("config.yaml", "mcpServers:\n  - name: a\n", "is YAML, and only JSON is read"),
        ("settings.json", '{"context_servers": {"a": {"command": "npx"}}}', "not from context_servers"),
        ("opencode.json", '{"mcp": {"a": {"command": ["npx"]}}}', "not from mcp"),
        ("settings.json", '{"mcp": {"servers": {"a": {"command": "npx"}}}}', "not from mcp"),
    ],
    ids=["codex", "continue", "zed", "opencode", "old vscode"],
)
def test_who_names_the_file_of_another_client_is_told_what_to_do(
    home: Path, run: Run, name: str, text: str, why: str
) -> None:
    file = home / name
    file.write_text(text)

    done = run("install", file)

    assert done.code == 1
    assert why in done.err
    assert "put `holdfast wrap --name NAME --` before the command of each server by hand" in done.err
    assert file.read_text() == text
    assert "by hand" not in run("uninstall", file).err


def test_settings_that_only_speak_of_mcp_list_no_servers(file: Path, run: Run) -> None:
    file.write_text('{"mcp": {"allowed": ["a"]}, "mcpSeen": ["b"]}')

    assert run("install", file) == (0, "", f"holdfast: {file} lists no MCP servers\n")


# --- where clients have their files ---


@pytest.mark.skipif(sys.platform == "darwin", reason="the places of Linux")
@pytest.mark.parametrize(
    ("client", "place"),
    [
        ("claude-desktop", "home/.config/Claude/claude_desktop_config.json"),
        ("cursor", "home/.cursor/mcp.json"),
        ("vscode", "home/.config/Code/User/mcp.json"),
        ("vscode", "work/.vscode/mcp.json"),
        ("claude-code", "home/.claude.json"),
        ("claude-code", "work/.mcp.json"),
    ],
)
def test_a_client_is_found_by_its_name(home: Path, run: Run, client: str, place: str) -> None:
    path = home.parent / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CONFIG)

    assert run("install", client).code == 0
    assert "holdfast" in path.read_text()
    assert run("uninstall", client).code == 0
    assert path.read_text() == CONFIG


def test_the_file_of_the_project_comes_before_the_users_own(home: Path, run: Run) -> None:
    for place in ("home/.claude.json", "work/.mcp.json"):
        (home.parent / place).write_text(CONFIG)

    run("install", "claude-code")

    assert (home / ".claude.json").read_text() == CONFIG


def test_a_client_without_a_file_is_told_where_it_was_looked_for(home: Path, run: Run) -> None:
    done = run("install", "claude-code")

    assert done.code == 1
    assert f"at {home.parent}/work/.mcp.json nor at {home}/.claude.json" in done.err


# --- the executable ---


def test_the_executable_is_the_script_beside_this_python() -> None:
    assert executable() == [HOLDFAST]


def test_without_a_script_it_is_the_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    assert executable() == [str(tmp_path / "python"), "-m", "holdfast"]


def test_the_module_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("holdfast ")


# --- backups ---


def test_the_backup_is_the_file_as_it_was(file: Path, run: Run) -> None:
    file.chmod(0o640)

    run("install", file)

    backup = file.with_name("mcp.json.holdfast-backup")
    assert backup.read_text() == CONFIG
    assert stat.S_IMODE(backup.stat().st_mode) == 0o640


def test_an_older_backup_of_something_else_is_never_written_over(file: Path, run: Run) -> None:
    file.with_name("mcp.json.holdfast-backup").write_text("older")
    file.with_name("mcp.json.holdfast-backup.1").symlink_to("nowhere")

    done = run("install", file)

    assert file.with_name("mcp.json.holdfast-backup").read_text() == "older"
    assert file.with_name("mcp.json.holdfast-backup.2").read_text() == CONFIG
    assert "holdfast-backup.2" in done.err
    assert names(file.parent) == ["mcp.json", *(f"mcp.json.holdfast-backup{end}" for end in ("", ".1", ".2"))]


def test_a_backup_that_is_there_already_is_not_made_again(file: Path, run: Run) -> None:
    for _ in range(3):
        run("install", file)
        run("uninstall", file)

    assert names(file.parent) == ["mcp.json", "mcp.json.holdfast-backup", "mcp.json.holdfast-backup.1"]


def test_a_backup_that_somebody_else_makes_meanwhile_is_never_written_over(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def meanwhile(source: str, target: str) -> None:
        if not Path(target).name.endswith(".1"):
            Path(target).write_text("theirs")
        link(source, target)

    monkeypatch.setattr(os, "link", meanwhile)

    backup = save(load(str(file)), "{}")

    assert backup == f"{file}.holdfast-backup.1"
    assert file.with_name("mcp.json.holdfast-backup").read_text() == "theirs"
    assert Path(backup).read_text() == CONFIG


def test_the_new_file_is_written_beside_the_old_which_may_be_on_another_disk_than_all_else(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(file.parent / "there-is-none"))

    save(load(str(file)), "{}")

    assert file.read_text() == "{}"


def test_a_file_system_without_hard_links_gets_its_backup_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    save(load(str(file)), "{}")

    assert file.with_name("mcp.json.holdfast-backup").read_text() == CONFIG
    assert names(file.parent) == ["mcp.json", "mcp.json.holdfast-backup"]


def test_uninstalling_needs_no_backup_and_keeps_later_edits(file: Path, run: Run) -> None:
    run("install", file)
    file.with_name("mcp.json.holdfast-backup").unlink()
    file.write_text(file.read_text().replace("every day", "on Sundays"))

    run("uninstall", file)

    assert file.read_text() == CONFIG.replace("every day", "on Sundays")


# --- whole or not at all ---


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664])
def test_mode_and_owner_stay(file: Path, run: Run, mode: int) -> None:
    file.chmod(mode)
    if os.geteuid() == 0:
        os.chown(file, 1234, 2345)
    before = file.stat()

    run("install", file)

    after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert "wrap" in file.read_text()


def test_a_link_stays_a_link_and_the_file_behind_it_is_written(file: Path, home: Path, run: Run) -> None:
    (home / "dotfiles").mkdir()
    real = file.rename(home / "dotfiles" / "real.json")
    file.symlink_to("dotfiles/real.json")

    run("install", file)

    assert file.is_symlink()
    assert "wrap" in real.read_text()
    assert names(real.parent) == ["real.json", "real.json.holdfast-backup"]
    assert not list(home.glob("mcp.json.*"))


def test_a_change_by_somebody_else_is_never_written_over(file: Path) -> None:
    loaded = load(str(file))
    file.write_text("theirs")

    with pytest.raises(ConfigError, match="was changed by another program just now; nothing was written, try again"):
        save(loaded, "ours")

    assert (file.read_text(), names(file.parent)) == ("theirs", ["mcp.json"])


def test_a_change_while_we_write_is_never_written_over(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(str(file))
    fsync = os.fsync

    def meanwhile(number: int) -> None:
        fsync(number)
        file.write_text("theirs")

    monkeypatch.setattr(os, "fsync", meanwhile)

    with pytest.raises(ConfigError, match="was changed by another program"):
        save(loaded, "ours")

    assert file.read_text() == "theirs"
    assert names(file.parent) == ["mcp.json", "mcp.json.holdfast-backup"]


def test_a_file_that_is_gone_is_not_made_again(file: Path) -> None:
    loaded = load(str(file))
    file.unlink()

    with pytest.raises(ConfigError, match="does not exist"):
        save(loaded, "ours")

    assert names(file.parent) == []


@pytest.mark.parametrize("room", [0, 10, len(CONFIG) + 10], ids=["none", "less than the backup", "less than the file"])
def test_a_full_disk_leaves_the_file_as_it_was(file: Path, room: int) -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))"
    code = f"{limit}; import sys; from holdfast.cli import main; sys.exit(main(['install', {str(file)!r}]))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1, done.stderr
    assert done.stderr == f"holdfast: {file}: cannot be written: File too large; it is as it was\n"
    assert file.read_text() == CONFIG
    assert not [name for name in names(file.parent) if name.endswith(".tmp")]


def test_a_process_killed_while_it_writes_leaves_the_file_as_it_was(file: Path) -> None:
    code = f"""
import os, signal, sys
replace = os.replace
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
from holdfast.cli import main
main(["install", {str(file)!r}])
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert done.returncode == -9
    assert file.read_text() == CONFIG


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder that this process, no longer root, may read but not write."""
    folder = Path(tempfile.mkdtemp()).resolve()  # on macOS the way to it leads over a link
    (folder / "mcp.json").write_text(CONFIG)
    folder.chmod(0o555)
    (folder / "mcp.json").chmod(0o666)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield folder
    if root:
        os.seteuid(0)
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_folder_that_cannot_be_written_is_an_error_and_the_file_stays(nobody: Path, run: Run) -> None:
    done = run("install", nobody / "mcp.json")

    assert done.code == 1
    assert done.err == f"holdfast: {nobody}/mcp.json: cannot be written: Permission denied; it is as it was\n"
    assert (nobody / "mcp.json").read_text() == CONFIG
    assert names(nobody) == ["mcp.json"]


def in_a_terminal(*arguments: object, **environment: str) -> str:
    """What a command prints on a terminal."""
    import pty

    mine, theirs = pty.openpty()
    settings = {**os.environ, "TERM": "xterm", **environment}
    process = subprocess.Popen(
        [HOLDFAST, *map(str, arguments)], stdout=theirs, stderr=subprocess.DEVNULL, stdin=theirs, env=settings
    )
    os.close(theirs)
    parts = []
    try:
        while part := os.read(mine, 4096):
            parts.append(part)
    except OSError:
        parts.append(b"")  # Linux says so when the other end is closed
    os.close(mine)
    assert process.wait() == 0
    return b"".join(parts).decode()
