"""Policies from a file: what is read, what a mistake says, and how a changed file is taken up while a process runs."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.errors import ConfigError
from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.rate import RateConfig
from holdfast.guards.retry import RetryConfig
from holdfast.policy import Policy, PolicyBook, Reload

DOCS = (Path(__file__).parents[2] / "docs" / "policies.md").read_text("utf-8")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("holdfast.toml")


@pytest.fixture
def write(path: Path) -> Callable[[str], None]:
    """Writes the file in place; each time a second later than before, whatever the clock says."""
    seconds = iter(range(1_000_000_000, 2_000_000_000))

    def write(text: str) -> None:
        path.write_text(text, "utf-8")
        os.utime(path, (second := next(seconds), second))

    return write


def mistakes(path: Path, content: str | bytes) -> list[str]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        PolicyBook.load(path)
    problems: tuple[str, ...] = vars(caught.value)["problems"]
    assert str(caught.value).splitlines() == list(problems)
    return list(problems)


# --- reading ---


def test_a_file_gives_policies_to_tools_patterns_and_servers(path: Path) -> None:
    path.write_text(
        """
        [policy]
        timeout = 30.0
        breaker = { failure_threshold = 3 }
        [tool."search_*"]
        rate = "10/s"
        [server.github]
        deadline = 45.0
        [server.github.tool."create_*"]
        idempotent = true
        """
    )

    book = PolicyBook.load(path)

    assert book.resolve("search_web") == Policy(
        timeout=30.0, breaker=BreakerConfig(failure_threshold=3), rate=RateConfig(per_second=10.0)
    )
    assert book.resolve("github.create_issue") == Policy(
        timeout=30.0,
        breaker=BreakerConfig(failure_threshold=3),
        deadline=45.0,
        idempotent=True,
        retry=RetryConfig(),
    )


def test_a_server_has_a_circuit_of_its_own_and_may_hide_its_open_tools(path: Path) -> None:
    path.write_text(
        "[policy]\nbreaker = { failure_threshold = 4 }\n"
        "[server.github]\nhide_open_tools = true\nbreaker = { min_backoff = 9.0 }\n"
        "[server.time]\nbreaker = false\n"
    )

    book = PolicyBook.load(path)

    github, time, other = (book.server(name) for name in ("github", "time", "other"))
    assert github.hides
    assert github.breaker is not None
    assert (github.breaker.failure_threshold, github.breaker.min_backoff) == (4, 9.0)
    assert (time.breaker, time.hides) == (None, False)
    assert other.breaker is not None
    assert (other.breaker.failure_threshold, other.hides) == (4, False)


def test_origins_name_the_file_and_the_table(path: Path) -> None:
    path.write_text('[tool."search_*"]\nmax_wait = 1')

    origins = PolicyBook.load("holdfast.toml").origins("search_web")

    assert origins["max_wait"] == 'file holdfast.toml [tool."search_*"]'


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf[policy]\r\nmax_wait = 1\r\n")

    assert PolicyBook.load(path).resolve("search").max_wait == 1.0


def test_without_a_source_there_are_the_defaults() -> None:
    book = PolicyBook.load(None)

    assert (book.resolve("search"), book.path, book.store) == (Policy(), None, None)


# --- the store ---


@pytest.mark.parametrize(
    ("store", "meant"),
    [
        ("agent.db", "{folder}/agent.db"),
        ("data/agent.db", "{folder}/data/agent.db"),
        ("/var/agent.db", "/var/agent.db"),
        ("~/agent.db", "~/agent.db"),
        (":memory:", ":memory:"),
        ("sqlite:///agent.db", "sqlite:///{folder}/agent.db"),
        ("sqlite:////var/agent.db", "sqlite:////var/agent.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite:///:memory:?synchronous=NORMAL", "sqlite:///:memory:?synchronous=NORMAL"),
        ("sqlite:///agent.db?synchronous=NORMAL", "sqlite:///{folder}/agent.db?synchronous=NORMAL"),
        ("sqlite:///", "sqlite:///"),
        ("postgresql://db.local/runs", "postgresql://db.local/runs"),
        ("postgresql:///runs", "postgresql:///runs"),
        ("sqlite:agent.db", "sqlite:agent.db"),  # mistyped, as whoever opens it will say
    ],
)
def test_a_relative_store_starts_at_the_folder_of_the_file(tmp_path: Path, store: str, meant: str) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text(f'store = "{store}"')

    assert PolicyBook.load(path).store == meant.format(folder=tmp_path)


def test_the_store_of_a_mapping_is_as_it_was_given() -> None:
    assert PolicyBook.load({"store": "agent.db"}).store == "agent.db"


# --- mistakes ---


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            '[tool."search_*"]\nrate = "10/x"',
            'holdfast.toml: [tool."search_*"] rate = "10/x": must be like "10/s", "100/m"',
        ),
        (
            "[policy]\ntimout = 3",
            "holdfast.toml: [policy] timout = 3: unknown key, did you mean timeout? allowed: breaker",
        ),
        ("[policy]\nread_only = 1", "holdfast.toml: [policy] read_only = 1: must be true or false"),
        (
            "[policy]\ntimeout = 2020-01-01",
            "holdfast.toml: [policy] timeout = datetime.date(2020, 1, 1): must be a number",
        ),
        (
            "[policy]\nretry = { max = 0.1 }",
            "holdfast.toml: [policy] retry = {'max': 0.1}: max must be a number of at least 0.2",
        ),
        ("[policy]\ncache.max_entries = 5", "holdfast.toml: [policy] cache = {'max_entries': 5}: ttl is missing"),
        (
            "[policy]\nbreaker.slow_call_rate = 0.5",
            "holdfast.toml: [policy] breaker = {'slow_call_rate': 0.5}: slow_call_rate needs slow_call",
        ),
        (
            "[server.github]\nmode = 'x'",
            'holdfast.toml: [server.github] mode = "x": must be one of exact, leased, view',
        ),
        (
            "[server.github.tool.'a.b*']\npriority = 'x'",
            'holdfast.toml: [server.github.tool."a.b*"] priority = "x": must be one of critical, high, low, normal',
        ),
        (
            "[server.github]\nhide_open_tools = 1",
            "holdfast.toml: server.github.hide_open_tools = 1: must be true or false",
        ),
        (
            "[server.github]\nsampling = true",
            "holdfast.toml: [server.github] sampling = true: unknown key; allowed: breaker,",
        ),
        (
            "[server.github.search]\nmax_wait = 1",
            "loop, max_wait, mode, priority, rate, read_only, remember, retry, timeout, tool; "
            "a tool of the server is [server.github.tool.NAME]",
        ),
        ("[tool.github.search]\nmax_wait = 1", 'timeout; a name with dots needs quotes: [tool."github.NAME"]'),
        (r'[tool."\u001b[2J".x]', r'timeout; a name with dots needs quotes: [tool."\u001b[2J.NAME"]'),
        ("[tool]\nsearch = 3", "holdfast.toml: tool.search = 3: must be a table"),
        ("tool = 3", "holdfast.toml: tool = 3: must be a table"),
        ("policy = 3", "holdfast.toml: policy = 3: must be a table"),
        ("[server.github]\ntool = 3", "holdfast.toml: server.github.tool = 3: must be a table"),
        ('[tool.""]\nmax_wait = 1', "holdfast.toml: tool.\"\" = {'max_wait': 1}: must have a name"),
        (
            "[tools]",
            "holdfast.toml: tools = {}: unknown key, did you mean tool? "
            "allowed: on_outage, policy, redis, server, store, tool",
        ),
        ("timeout = 3", "holdfast.toml: timeout = 3: unknown key here; settings of every tool belong in [policy]"),
        ("store = 3", "holdfast.toml: store = 3: must be a path, or an address such as sqlite:///agent.db"),
        ("store = ''", 'holdfast.toml: store = "": must be a path'),
        ("[policy]\n\ntimeout =", "holdfast.toml: is not TOML: Invalid value (at line 3, the end of the document)"),
        ("[policy]\ntimeout = x\n", "holdfast.toml: is not TOML: Invalid value (at line 2, column 11)"),
        ("[policy]\n[policy]", "holdfast.toml: is not TOML: Cannot declare ('policy',) twice (at line 2, column 8)"),
        (b"[policy]\n# \xff", "holdfast.toml: is not UTF-8 text (at line 2)"),
        ("a = " + "[" * 5000, "holdfast.toml: is not TOML that can be read: nested too deeply"),
        ("a = " + "1" * 5000, "holdfast.toml: is not TOML: "),
        ("#" * 1_000_001, "holdfast.toml: is larger than 1,000,000 bytes"),
    ],
)
def test_a_mistake_in_a_file_names_the_file_the_key_the_value_and_what_is_allowed(
    path: Path, content: str | bytes, line: str
) -> None:
    (told,) = mistakes(path, content)

    assert told.startswith("holdfast.toml: ")
    assert line in told


@pytest.mark.parametrize(
    "text",
    [
        'redis_url = "redis://:s3cret@h"',
        '[policy]\nstore = "postgresql://u:s3cret@h/db"',
        '[policy]\ntimeout = "redis://:s3cret@h"',
        'stores = ["postgresql://u:s3cret@h/db"]',
        '[store]\nurl = "postgresql://u:s3cret@h/db"',
        'password = "s3cret"',
        '[redis]\npassword = "s3cret"',
        '[server.x.env]\nTOKEN = "s3cret"',
        f'{"a." * 450}password = "s3cret"',
    ],
    ids=lambda text: text[:20],
)
def test_a_mistake_in_a_file_shows_no_password(path: Path, text: str) -> None:
    (told,) = mistakes(path, text)

    assert "s3cret" not in told


def test_every_mistake_of_a_file_is_told(path: Path) -> None:
    told = mistakes(
        path,
        """
        store = 1
        surplus = 2
        [policy]
        timeout = -1
        retry = { attempts = 0, factor = "x", initial = 1.0 }
        [tool.search]
        budget = { calls = 0, "us d" = 1 }
        [server.github]
        loop = 3
        [server.github.tool."*"]
        breaker = { jitter = 5, trips = ["nope"] }
        """,
    )

    assert [re.sub(r"^holdfast.toml: ", "", line).split(" = ")[0] for line in told] == [
        "store",
        "surplus",
        "[policy] timeout",
        "[policy] retry.attempts",
        "[policy] retry.factor",
        "[tool.search] budget.calls",
        '[tool.search] budget."us d"',
        "[server.github] loop",
        '[server.github.tool."*"] breaker.trips',
        '[server.github.tool."*"] breaker.jitter',
    ]


def test_the_name_of_a_table_must_be_a_text() -> None:
    with pytest.raises(ConfigError, match=r"policies: tool.1 = \{\}: must have a name that is a text and not empty"):
        PolicyBook.load({"tool": {1: {}}})


def test_a_source_that_is_neither_path_nor_mapping_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"policies = 3: must be the path of a file, or a mapping"):
        PolicyBook.load(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("missing.toml", "missing.toml: does not exist"),
        (".", ".: is a directory, not a policy file"),
        ("pipe", "pipe: is no regular file, not a policy file"),
        ("file/holdfast.toml", "file/holdfast.toml: cannot be read: Not a directory"),
        ("nul\0", "cannot be read: "),  # what is wrong with it, each Python words in its own way
    ],
)
def test_what_cannot_be_read_as_a_file_is_a_mistake(path: Path, source: str, text: str) -> None:
    Path("file").touch()
    os.mkfifo("pipe")

    with pytest.raises(ConfigError, match=re.escape(text)):
        PolicyBook.load(source)


# --- reloading ---


def max_wait(book: PolicyBook) -> float:
    return book.resolve("search").max_wait


def test_a_book_without_a_file_never_needs_a_look() -> None:
    book = PolicyBook.load({"policy": {"max_wait": 1}})

    assert book.next_check == math.inf
    assert book.refresh(1e9) is None


def test_an_unchanged_file_is_not_read_again(path: Path, write: Callable[[str], None]) -> None:
    write("[policy]\nmax_wait = 1")
    book = PolicyBook.load(path)
    edition = book.edition

    assert book.refresh(0.0) is None
    assert book.edition is edition


def test_a_changed_file_is_taken_up(path: Path, write: Callable[[str], None]) -> None:
    write("[policy]\nmax_wait = 1")
    book = PolicyBook.load(path)
    edition = book.edition
    write("[policy]\nmax_wait = 2")

    reload = book.refresh(0.0)

    assert reload is not None
    assert (reload.path, reload.error) == (str(path.absolute()), None)
    assert max_wait(book) == 2.0
    assert book.edition is not edition


def test_the_file_is_looked_at_once_a_second_at_most(path: Path, write: Callable[[str], None]) -> None:
    write("[policy]\nmax_wait = 1")
    book = PolicyBook.load(path)
    book.refresh(100.0)
    write("[policy]\nmax_wait = 2")

    assert book.next_check == 101.0
    assert book.refresh(100.9) is None
    assert max_wait(book) == 1.0
    assert book.refresh(101.0) is not None
    assert max_wait(book) == 2.0


def test_a_bad_file_keeps_the_old_policies_and_is_told_once(path: Path, write: Callable[[str], None]) -> None:
    write("[policy]\nmax_wait = 1")
    book = PolicyBook.load(path)
    edition = book.edition
    write("[policy]\nmax_wait = -1")

    reload = book.refresh(0.0)

    assert reload is not None
    assert str(reload.error) == "holdfast.toml: [policy] max_wait = -1: must be a number of at least 0"
    assert max_wait(book) == 1.0
    assert book.edition is edition
    assert book.refresh(1.0) is None


def test_a_bad_file_that_is_mended_is_taken_up(path: Path, write: Callable[[str], None]) -> None:
    write("[policy]\nmax_wait = 1")
    book = PolicyBook.load(path)
    write("[policy")
    book.refresh(0.0)
    write("[policy]\nmax_wait = 2")

    reload = book.refresh(1.0)

    assert reload is not None
    assert reload.error is None
    assert max_wait(book) == 2.0


def test_a_deleted_file_keeps_the_old_policies_and_is_told_once(path: Path, write: Callable[[str], None]) -> None:
    write("[policy]\nmax_wait = 1")
    book = PolicyBook.load(path)
    path.unlink()

    reload = book.refresh(0.0)

    assert reload is not None
    assert str(reload.error) == "holdfast.toml: is gone; the policies read from it stay in force"
    assert max_wait(book) == 1.0
    assert book.refresh(1.0) is None


def test_a_deleted_file_that_comes_back_is_taken_up(path: Path, write: Callable[[str], None]) -> None:
    write("[policy]\nmax_wait = 1")
    book = PolicyBook.load(path)
    path.rename("elsewhere")
    book.refresh(0.0)
    Path("elsewhere").rename(path)

    reload = book.refresh(1.0)

    assert reload is not None
    assert reload.error is None


def test_a_file_that_will_not_do_for_the_tools_of_a_proxied_server_is_a_bad_one(
    path: Path, write: Callable[[str], None]
) -> None:
    write("[server.srv]\nmax_wait = 1")
    book = PolicyBook.load(path)
    book.server("srv")
    write("[server.other]\nrate = { burst = 5 }\n[server.srv.tool.get]\nrate = { burst = 5 }")

    reload = book.refresh(0.0)

    assert reload is not None
    assert str(reload.error) == (
        "policy of 'srv.get': rate = {'burst': 5}: per_second is missing "
        "(burst: file holdfast.toml [server.srv.tool.get])"
    )
    assert book.resolve("srv.get").max_wait == 1.0


def test_a_pattern_of_a_proxied_server_is_no_tool_that_it_has(path: Path) -> None:
    path.write_text('[server."a?b".tool."get_*"]\nrate = { burst = 5 }\n[server."a?b".tool.put]\nmax_wait = 1')

    rules = PolicyBook.load(path).server("a?b")

    assert rules.breaker is not None


def test_a_policy_that_does_not_go_together_is_told_beside_all_other_mistakes(path: Path) -> None:
    path.write_text("[policy]\nretry = { initial = 5.0 }\n[tool.x]\ntimeout = -1\n")

    with pytest.raises(ConfigError) as caught:
        PolicyBook.load(path)

    assert [line.partition(" = ")[0] for line in caught.value.problems] == [
        "holdfast.toml: [policy] retry",
        "holdfast.toml: [tool.x] timeout",
    ]


def until_it_shows(path: Path, change: Callable[[], object]) -> None:
    """Make a change again until the system, whose clock may be coarse, has another time for it."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        change()


def test_a_file_written_in_place_is_noticed_though_size_and_time_are_the_same(path: Path) -> None:
    def write(number: int) -> None:
        path.write_text(f"[policy]\nmax_wait = {number}")
        os.utime(path, (1, 1))

    write(1)
    book = PolicyBook.load(path)
    until_it_shows(path, lambda: write(2))

    reload = book.refresh(0.0)

    assert reload is not None
    assert book.resolve("search").max_wait == 2.0


def test_a_file_is_looked_at_again_when_others_may_read_it_that_could_not(path: Path) -> None:
    path.write_text("[policy]\nmax_wait = 1")
    path.chmod(0o600)
    book = PolicyBook.load(path)
    until_it_shows(path, lambda: path.chmod(0o644))

    assert book.refresh(0.0) is not None


def test_a_file_renamed_over_the_old_one_is_noticed_though_size_and_time_are_the_same(
    path: Path, write: Callable[[str], None]
) -> None:
    write("[policy]\nmax_wait = 1")
    book = PolicyBook.load(path)
    status = path.stat()
    other = Path("holdfast.toml.tmp")
    other.write_text("[policy]\nmax_wait = 2")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)

    book.refresh(0.0)

    assert max_wait(book) == 2.0


def test_a_file_that_can_no_longer_be_reached_keeps_the_old_policies(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "holdfast.toml").write_text("[policy]\nmax_wait = 1")
    book = PolicyBook.load(folder / "holdfast.toml")
    folder.rename(tmp_path / "moved")
    folder.touch()

    reload = book.refresh(0.0)

    assert reload is not None
    assert "cannot be read: Not a directory" in str(reload.error)
    assert max_wait(book) == 1.0
    assert book.refresh(1.0) is None


def test_a_file_that_does_not_go_with_the_decorators_is_a_bad_one(path: Path, write: Callable[[str], None]) -> None:
    write("[policy]\nmax_wait = 1")
    book = PolicyBook.load(path)
    write("[tool.search]\nretry = { max = 1.0 }")

    reload = book.refresh(0.0, known=[("search", {"retry": {"initial": 2.0}})])

    assert reload is not None
    assert "max must be a number of at least 2" in str(reload.error)
    assert "max: file holdfast.toml [tool.search]" in str(reload.error)
    assert max_wait(book) == 1.0


def test_a_file_is_found_again_after_the_process_changed_its_folder(
    path: Path, write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("[policy]\nmax_wait = 1")
    book = PolicyBook.load(path)
    monkeypatch.chdir("/")

    assert book.refresh(0.0) is None


def test_the_store_stays_when_the_file_changes(path: Path, write: Callable[[str], None]) -> None:
    write("store = '/one.db'")
    book = PolicyBook.load(path)
    write("store = '/two.db'")

    book.refresh(0.0)

    assert book.store == "/one.db"


def test_only_one_caller_at_a_time_looks_at_the_file(path: Path, write: Callable[[str], None]) -> None:
    write("[policy]\nmax_wait = 1")
    book = PolicyBook.load(path)
    write("[policy]\nmax_wait = 2")
    meanwhile: list[object] = []

    def tools() -> Iterator[tuple[str, None]]:
        meanwhile.append((book.refresh(1e9), book.next_check))
        yield "search", None

    assert book.refresh(0.0, known=tools()) is not None
    assert meanwhile == [(None, 1.0)]
    assert book.refresh(1.0) is None
    assert book.next_check == 2.0


def test_a_forked_child_looks_for_itself_though_its_parent_was_looking(
    path: Path, write: Callable[[str], None]
) -> None:
    write("[policy]\nmax_wait = 1")
    book = PolicyBook.load(path)
    write("[policy]\nmax_wait = 2")
    in_child: list[Reload | None] = []

    def tools() -> Iterator[tuple[str, None]]:
        book.after_fork()
        in_child.append(book.refresh(1.0))
        yield "search", None

    book.refresh(0.0, known=tools())

    assert in_child == [Reload(str(path.absolute()))]


# --- the reference ---


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL))
def test_every_file_in_the_reference_is_a_good_one(path: Path, block: str) -> None:
    path.write_text(block)

    book = PolicyBook.load(path)

    for name in tomllib.loads(block).get("tool", {}):
        book.resolve(name, {"read_only": True, "rate": "5/s"})


def test_the_worked_example_of_the_reference_is_right(path: Path) -> None:
    example = DOCS.partition("An example.")[2]
    path.write_text(re.findall(r"```toml\n(.*?)```", example, re.DOTALL)[0])

    policy = PolicyBook.load(path).resolve("search_web", {"read_only": True, "rate": "5/s", "retry": {"attempts": 5}})

    assert policy.timeout is None
    assert policy.rate == RateConfig(per_second=5.0, burst=20)
    assert policy.retry == RetryConfig(attempts=5, max=10.0, initial=0.2)


def rows(section: str) -> dict[str, str]:
    """The settings that a section of the reference lists, with their defaults."""
    text = DOCS.partition(f"\n{section}\n")[2].partition("\n##")[0]
    return dict(re.findall(r"^\| \[?`(\w+)`[^|]* \| [^|]+ \| ([^|]+) \|", text, re.MULTILINE))


def default(field: Any) -> str:
    if field.required:
        return "must be given"
    value = field.default if field.default is not msgspec.NODEFAULT else None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:g}"
    return "none" if value in {None, msgspec.UNSET} else str(value)


def test_the_reference_lists_every_setting_with_its_default() -> None:
    listed = rows("## Settings")

    assert listed.keys() == set(Policy.__struct_fields__)
    for key in ("timeout", "deadline", "max_wait", "priority", "read_only", "idempotent", "remember", "mode"):
        field = next(field for field in msgspec.structs.fields(Policy) if field.name == key)
        assert listed[key] == default(field)
