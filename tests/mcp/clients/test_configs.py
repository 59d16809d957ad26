"""The configurations of clients: read as their clients read them, wrapped and unwrapped to the byte."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.mcp.clients.documents import Json, values, written

from holdfast.errors import ConfigError
from holdfast.mcp.clients.configs import ServerEntry, servers, wrapping_of
from holdfast.mcp.clients.jsonc import parse, plain
from holdfast.mcp.clients.places import CLIENTS, places
from holdfast.mcp.clients.rewriting import UnknownServer, unwrap, wrap

HOLDFAST = ["/opt/holdfast/bin/holdfast"]
MODULE = ["/usr/bin/python3", "-m", "holdfast"]


def read(text: str) -> Any:
    return plain(parse(text, "file"))


def config(**entries: object) -> str:
    return json.dumps({"mcpServers": entries}, ensure_ascii=False)


def wrapped(text: str, executable: list[str] = HOLDFAST) -> Any:
    return read(wrap(text, "file", executable).text)["mcpServers"]


def only(text: str) -> ServerEntry:
    (found,) = servers(text, "file")
    return found


def outcome(text: str) -> tuple[str, str | None]:
    (found,) = wrap(text, "file", HOLDFAST).outcomes
    return found.outcome, found.why


# --- wrapping ---


def test_a_command_is_run_by_holdfast_and_all_else_of_the_entry_stays() -> None:
    entry = {
        "type": "stdio",
        "command": "npx",
        "args": ["-y", "x"],
        "env": {"A": "${input:a}"},
        "cwd": "/",
        "disabled": 1,
    }

    (got,) = wrapped(config(files=entry)).values()

    args = ["wrap", "--name", "files", "--", "npx", "-y", "x"]
    assert got == {**entry, "command": HOLDFAST[0], "args": args}
    assert list(got) == list(entry)


@pytest.mark.parametrize("entry", [{"command": "x"}, {"command": "x", "args": []}])
def test_a_command_without_arguments_is_wrapped_too(entry: dict[str, object]) -> None:
    (got,) = wrapped(config(s=entry)).values()

    assert got == {"command": HOLDFAST[0], "args": ["wrap", "--name", "s", "--", "x"]}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"command": "x", "args": ["y"]}, ["--", "x", "y"]),
        ({"command": "x"}, ["--", "x"]),
        ({"url": "http://localhost/mcp"}, ["--url", "http://localhost/mcp"]),
    ],
)
def test_an_executable_may_be_several_words(entry: dict[str, object], words: list[str]) -> None:
    (got,) = wrapped(config(s=entry), MODULE).values()

    assert got == {"command": MODULE[0], "args": ["-m", "holdfast", "wrap", "--name", "s", *words]}


def test_an_address_becomes_a_command_and_its_headers_go_by_the_environment() -> None:
    entry = {"type": "http", "url": "https://h/mcp", "headers": {"X-Key": "secret", "x_key": "${env:K}"}, "timeout": 9}

    (got,) = wrapped(config(s=entry)).values()

    assert got == {
        "type": "stdio",
        "command": HOLDFAST[0],
        "args": [
            *["wrap", "--name", "s", "--url", "https://h/mcp"],
            *["--header-env", "X-Key=HOLDFAST_HEADER_X_KEY", "--header-env", "x_key=HOLDFAST_HEADER_X_KEY_2"],
        ],
        "env": {"HOLDFAST_HEADER_X_KEY": "secret", "HOLDFAST_HEADER_X_KEY_2": "${env:K}"},
        "timeout": 9,
    }


def test_no_value_of_a_header_is_an_argument() -> None:
    text = config(s={"url": "https://h/mcp", "headers": {"Authorization": "Bearer secret"}})

    (got,) = wrapped(text).values()

    assert "secret" not in json.dumps(got["args"])


def test_an_entry_without_a_type_gets_none() -> None:
    (got,) = wrapped(config(s={"url": "http://localhost:1/mcp"})).values()

    assert got == {"command": HOLDFAST[0], "args": ["wrap", "--name", "s", "--url", "http://localhost:1/mcp"]}


@pytest.mark.parametrize("kind", ["streamable-http", "streamableHttp"])
def test_another_word_for_http_is_kept_for_the_way_back(kind: str) -> None:
    text = config(s={"type": kind, "url": "http://localhost:1/mcp"})

    (got,) = wrapped(text).values()

    assert got["args"][-2:] == ["--type", kind]
    assert unwrap(wrap(text, "file", HOLDFAST).text, "file").text == text


@pytest.mark.parametrize(
    "command",
    [
        ["/elsewhere/bin/holdfast", "wrap", "--name", "s", "--", "x"],
        ["holdfast", "wrap", "--", "x"],
        ["holdfast", "wrap", "--policy", "p.toml", "--url", "http://h"],
        ["/usr/bin/python3.12", "-m", "holdfast", "wrap", "--", "x"],
        ["uvx", "holdfast@latest", "wrap", "--", "x"],
        ["uvx", "--from", "holdfast[http]", "holdfast", "wrap", "--", "x"],
    ],
)
def test_what_holdfast_runs_already_by_any_path_is_left_as_it_is(command: list[str]) -> None:
    text = config(s={"command": command[0], "args": command[1:]})

    result = wrap(text, "file", HOLDFAST)

    assert result.text == text
    assert result.outcomes[0].outcome == "already"


@pytest.mark.parametrize(
    "command",
    [["npx", "holdfast-like", "wrap"], ["npx", "--", "holdfast", "wrap"], ["wrap", "holdfast"], ["holdfast", "serve"]],
)
def test_what_only_looks_like_holdfast_is_wrapped(command: list[str]) -> None:
    assert outcome(config(s={"command": command[0], "args": command[1:]})) == ("wrapped", None)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (3, "must be an object"),
        ({}, "has neither command nor url"),
        ({"command": None, "url": None}, "has neither command nor url"),
        ({"serverUrl": "http://h/mcp"}, "has neither command nor url; serverUrl is not read"),
        ({"httpUrl": "http://h/mcp", "headers": {}}, "has neither command nor url; httpUrl is not read"),
        ({"command": "x", "url": "http://h"}, "has both command and url"),
        ({"command": ["x"]}, "command must be a text"),
        ({"command": "x", "args": "y"}, "args must be a list of texts"),
        ({"command": "x", "args": [1]}, "args must be a list of texts"),
        ({"command": "x", "env": ["A"]}, "env must be an object of texts"),
        ({"command": "x", "type": "http"}, "type 'http' needs a url"),
        ({"url": "http://h", "type": "stdio"}, "type 'stdio' needs a command"),
        ({"url": "ws://h", "type": "ws"}, "type 'ws' is not one of"),
        ({"url": "ws://h"}, "Holdfast speaks http and https, not ws"),
        ({"url": "unix:///run/mcp.sock"}, "Holdfast speaks http and https, not unix"),
        ({"url": "http://[h"}, "its url is not valid"),
        ({"url": "http://h", "type": "sse"}, "HTTP+SSE is not spoken by Holdfast"),
        ({"url": "http://h/sse"}, "HTTP+SSE is not spoken by Holdfast"),
        *(
            ({"url": "http://h", key: "x"}, f"the client signs in to it ({key})")
            for key in ("auth", "oauth", "headersHelper", "authProviderId", "authProviderType")
        ),
        ({"url": "http://h", "args": []}, "it has a url, and arguments of a command as well"),
        ({"url": "http://h", "command": None}, "it has a url, and arguments of a command as well"),
        ({"url": "http://h", "headers": {"A": "b"}, "env": {}}, "it has both headers and env"),
        ({"url": "http://h", "headers": {"A:": "b"}}, "'A:' cannot be the name of a header"),
        ({"url": "http://h", "headers": {"A": None}}, "a header is there twice, or null"),
        *(
            ({"command": "holdfast", "args": ["wrap", last]}, "have neither -- COMMAND nor --url URL")
            for last in ("--help", "--", "--name")
        ),
        ({"command": "x", "env": {"A": True}}, "env.A must be a text"),
    ],
)
def test_what_cannot_be_wrapped_is_left_alone_and_told_why(entry: object, why: str) -> None:
    text = config(s=entry)

    result = wrap(text, "file", HOLDFAST)

    assert result.text == text
    assert result.outcomes[0].outcome == "left alone"
    assert why in (result.outcomes[0].why or "")


@pytest.mark.parametrize("key", ["command", "args", "env"])
def test_an_entry_with_a_key_twice_is_left_alone(key: str) -> None:
    text = f'{{"mcpServers": {{"s": {{"command": "x", "args": [], "env": {{}}, "{key}": null}}}}}}'

    assert outcome(text) == ("left alone", f"{key} is there twice")


@pytest.mark.parametrize("name", ["", "a\\u0000b", "\\ud800"])
def test_a_name_that_cannot_be_an_argument_is_left_alone(name: str) -> None:
    text = f'{{"mcpServers": {{"{name}": {{"command": "x"}}}}}}'

    assert outcome(text) == ("left alone", "its name cannot be an argument of a command")


def test_an_address_that_may_need_a_sign_in_is_wrapped_with_a_warning() -> None:
    what, why = outcome(config(s={"url": "https://mcp.example.com/mcp"}))

    assert what == "wrapped"
    assert "OAuth" in (why or "")


@pytest.mark.parametrize(
    "entry",
    [
        {"url": "https://mcp.example.com/mcp", "headers": {"Authorization": "Bearer x"}},
        {"url": "http://localhost:8000/mcp"},
        {"url": "http://localhost:8000/mcp", "env": {"NO_PROXY": "*"}},
        {"url": "${env:ADDRESS}/mcp", "headers": {"A": "b"}},
    ],
)
def test_an_address_that_needs_no_sign_in_is_wrapped_without_one(entry: dict[str, object]) -> None:
    assert outcome(config(s=entry)) == ("wrapped", None)


ODD_NAMES = [
    "a b",
    "a.b",
    "-x",
    "--",
    "--help",
    "--name",
    "ü ホ",
    "q\"'`$(x)",
    "new\nline",
    "x=y",
    "=",
    "wrap",
    "\u202e",
]


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_an_odd_name_survives_the_way_there_and_back(name: str) -> None:
    text = config(**{name: {"command": "x", "args": ["--"]}})
    seen = []

    @click.command()
    @click.option("--name")
    @click.argument("command", nargs=-1)
    def command(name: str, command: tuple[str, ...]) -> None:
        seen.append((name, command))

    args = wrapped(text)[name]["args"]
    CliRunner().invoke(command, args[1:], catch_exceptions=False)

    assert seen == [(name, ("x", "--"))]
    assert unwrap(wrap(text, "file", HOLDFAST).text, "file").text == text


def test_of_two_servers_with_one_name_the_last_is_wrapped_since_it_is_the_one_that_runs() -> None:
    text = '{"mcpServers": {"s": {"command": "old"}, "s": {"command": "new"}}}'

    result = wrap(text, "file", HOLDFAST)

    assert [outcome.name for outcome in result.outcomes] == ["s"]
    assert result.text.startswith('{"mcpServers": {"s": {"command": "old"}, "s": {"command": "/opt')


# --- which servers ---

PRIVATE = json.dumps(
    {
        "mcpServers": {"a": {"command": "x"}},
        "projects": {"/one": {"mcpServers": {"a": {"command": "y"}, "b": {"command": "z"}}}, "/two": {}, "/three": 3},
    }
)


def test_the_servers_of_every_project_of_claude_code_are_wrapped() -> None:
    result = wrap(PRIVATE, "file", HOLDFAST)

    assert [(found.name, found.project) for found in result.outcomes] == [("a", None), ("a", "/one"), ("b", "/one")]
    assert {found.outcome for found in result.outcomes} == {"wrapped"}
    assert read(result.text)["projects"]["/one"]["mcpServers"]["b"]["args"][-1] == "z"


def test_the_servers_of_vs_code_are_wrapped_and_its_inputs_stay() -> None:
    text = json.dumps({"inputs": [{"id": "k"}], "servers": {"s": {"command": "x", "env": {"K": "${input:k}"}}}})

    got = read(wrap(text, "file", HOLDFAST).text)

    assert got["inputs"] == [{"id": "k"}]
    assert got["servers"]["s"]["env"] == {"K": "${input:k}"}
    assert got["servers"]["s"]["args"][-1] == "x"


def test_only_the_servers_that_were_named_are_touched() -> None:
    result = wrap(PRIVATE, "file", HOLDFAST, ["b"])

    assert [found.name for found in result.outcomes] == ["b"]
    assert result.text.count("wrap") == 1


def test_a_server_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(UnknownServer, match="file: lists no server 'c', only a, b"):
        wrap(PRIVATE, "file", HOLDFAST, ["a", "c"])


@pytest.mark.parametrize("text", ["{}", '{"mcpServers": {}}', '{"other": 1}', '{"editor": {"font": {}}}'])
def test_a_file_without_servers_is_no_mistake(text: str) -> None:
    assert wrap(text, "file", HOLDFAST) == (text, [])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "file: must be an object"),
        ('{"mcpServers": []}', "file: mcpServers: must be an object of servers by name"),
    ],
)
def test_a_file_that_is_no_configuration_is_an_error(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        wrap(text, "file", HOLDFAST)


# --- the layout stays ---


def test_arguments_on_lines_of_their_own_stay_so() -> None:
    text = '{\r\n\t"mcpServers": {"s": {"command": "npx", "args": [\r\n\t\t"-y", // yes\r\n\t\t"x",\r\n\t]}}}'

    got = wrap(text, "file", HOLDFAST).text

    lines = ['[\r\n\t\t"wrap"', '"--name"', '"s"', '"--"', '"npx"', '"-y", // yes\r\n\t\t"x",\r\n\t]']
    assert ",\r\n\t\t".join(lines) in got


def test_what_is_written_without_spaces_stays_so() -> None:
    text = '{"mcpServers":{"a":{"command":"x","args":["y","z"]},"b":{"command":"x"}}}'

    got = wrap(text, "file", HOLDFAST).text

    a = '{"command":"/opt/holdfast/bin/holdfast","args":["wrap","--name","a","--","x","y","z"]}'
    b = '{"command":"/opt/holdfast/bin/holdfast","args":["wrap","--name","b","--","x"]}'
    assert got == f'{{"mcpServers":{{"a":{a},"b":{b}}}}}'


headers = st.dictionaries(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,8}", fullmatch=True), st.text(max_size=5), max_size=3
)
others = st.dictionaries(st.sampled_from(["cwd", "disabled", "timeout", "note", "gallery"]), st.integers(), max_size=2)
stdio = st.fixed_dictionaries(
    {"command": st.text(st.characters(exclude_categories=["Cs"]), max_size=6)},
    optional={
        "args": st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=3),
        "type": st.just("stdio"),
        "env": st.dictionaries(st.text("AB", max_size=2), st.just("v"), max_size=2),
    },
)
http = st.fixed_dictionaries(
    {"url": st.sampled_from(["http://localhost/mcp", "https://h/mcp?key=é", "${env:URL}"])},
    optional={"type": st.sampled_from(["http", "streamable-http"]), "headers": headers},
)
entry = st.builds(
    lambda own, more, random: dict(shuffled({**more, **own}, random)),
    stdio | http,
    others,
    st.randoms(use_true_random=False),
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
documents = st.fixed_dictionaries(
    {"mcpServers": st.dictionaries(names, entry | values, max_size=4)}, optional={"inputs": values, "other": values}
)


def shuffled(items: dict[str, Any], random: Random) -> list[tuple[str, Any]]:
    found = list(items.items())
    random.shuffle(found)
    return found


@given(documents, st.randoms(use_true_random=False), st.sampled_from([HOLDFAST, MODULE]))
def test_wrapping_and_unwrapping_gives_back_the_same_bytes(
    document: Json, random: Random, executable: list[str]
) -> None:
    text = written(document, random)

    there = wrap(text, "file", executable).text

    assert unwrap(there, "file").text == text


@given(documents, st.randoms(use_true_random=False))
def test_wrapping_again_changes_nothing(document: Json, random: Random) -> None:
    once = wrap(written(document, random), "file", HOLDFAST)

    again = wrap(once.text, "file", HOLDFAST)

    assert again.text == once.text
    assert [found.outcome for found in again.outcomes] == [
        "already" if found.outcome == "wrapped" else "left alone" for found in once.outcomes
    ]


@given(documents, st.randoms(use_true_random=False))
def test_only_what_was_wrapped_reads_otherwise(document: Any, random: Random) -> None:
    result = wrap(written(document, random), "file", HOLDFAST)

    got = read(result.text)

    assert {**got, "mcpServers": None} == {**document, "mcpServers": None}
    for found in result.outcomes:
        before, after = document["mcpServers"][found.name], got["mcpServers"][found.name]
        assert (before == after) is (found.outcome == "left alone")


@given(documents, st.randoms(use_true_random=False))
def test_the_server_behind_a_wrapped_entry_is_read_as_the_one_that_was_there(document: Any, random: Random) -> None:
    good = [
        found.name for found in wrap(written(document, random), "file", HOLDFAST).outcomes if found.outcome == "wrapped"
    ]
    text = written({"mcpServers": {name: document["mcpServers"][name] for name in good}}, random)

    before, after = servers(text, "file"), servers(wrap(text, "file", HOLDFAST).text, "file")

    for plainly, behind in zip(before, after, strict=True):
        assert behind.wrapping is not None
        assert (behind.command, behind.args, behind.url) == (plainly.command, plainly.args, plainly.url)
        assert (behind.env, behind.headers, behind.transport) == (plainly.env, plainly.headers, plainly.transport)


# --- unwrapping what was edited meanwhile ---


def test_what_was_edited_since_stays() -> None:
    text = wrap(config(s={"command": "npx", "args": ["x"]}, t={"command": "y"}), "file", HOLDFAST).text
    edited = text.replace('"x"]', '"x", "--more"], "env": {"A": "new"}').replace(
        '{"mcpServers"', '{"new": 1, "mcpServers"'
    )

    got = read(unwrap(edited, "file").text)

    assert got == {
        "new": 1,
        "mcpServers": {"s": {"command": "npx", "args": ["x", "--more"], "env": {"A": "new"}}, "t": {"command": "y"}},
    }


def test_options_that_were_added_to_wrap_go_with_it() -> None:
    args = ["wrap", "--policy", "my.toml", "--hide-open-tools", "--name=s", "--deadline", "30", "--", "npx", "x"]
    text = config(s={"command": "holdfast", "args": args})

    assert read(unwrap(text, "file").text)["mcpServers"]["s"] == {"command": "npx", "args": ["x"]}


@pytest.mark.parametrize("executable", [["uvx", "holdfast"], ["uvx", "--from", "holdfast[http]", "holdfast"], MODULE])
def test_what_was_wrapped_by_hand_is_unwrapped_too(executable: list[str]) -> None:
    text = config(s={"command": executable[0], "args": [*executable[1:], "wrap", "--", "npx", "x"]})

    assert read(unwrap(text, "file").text)["mcpServers"]["s"] == {"command": "npx", "args": ["x"]}


@pytest.mark.parametrize("url", [["--url", "http://h"], ["--url=http://h"]])
def test_an_address_is_unwrapped_however_it_is_written(url: list[str]) -> None:
    text = config(s={"args": ["wrap", *url, "--name", "s"], "note": 1, "command": "holdfast"})

    assert read(unwrap(text, "file").text)["mcpServers"]["s"] == {"url": "http://h", "note": 1}


@pytest.mark.parametrize("entry", [{"command": "x"}, {"command": "x", "args": []}, {"command": "x", "args": ["y"]}])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_file_that_its_client_wrote_anew_is_unwrapped_all_the_same(entry: dict[str, Any], indent: int | None) -> None:
    there = wrap(config(s=entry), "file", HOLDFAST).text
    rewritten = json.dumps(json.loads(there), indent=indent, sort_keys=True)

    got = read(unwrap(rewritten, "file").text)["mcpServers"]["s"]

    assert {"args": [], **got} == {"args": [], **entry}


def test_an_empty_list_that_the_client_wrote_on_lines_of_their_own_is_empty_again() -> None:
    there = wrap(config(s={"command": "x", "args": []}), "file", HOLDFAST).text
    rewritten = json.dumps(json.loads(there), indent=2)

    assert '"args": []' in unwrap(rewritten, "file").text


@pytest.mark.parametrize("inside", ["", " ", "\n  ", "/* none */", " // none\n"])
def test_an_empty_list_is_the_same_after_the_way_there_and_back(inside: str) -> None:
    text = f'{{"mcpServers": {{"s": {{"command": "x", "args": [{inside}]}}}}}}'

    assert unwrap(wrap(text, "file", HOLDFAST).text, "file").text == text


@pytest.mark.parametrize(("before", "after"), [("// mine\n", "\n"), ("\n", "// mine\n"), ("/* mine */", "")])
def test_a_comment_of_ones_own_among_the_arguments_stays(before: str, after: str) -> None:
    args = f'[{before}"wrap", "--name", "s", "--", "x"{after}]'

    got = unwrap(f'{{"mcpServers": {{"s": {{"command": "holdfast", "args": {args}}}}}}}', "file").text

    assert "mine" in got
    assert read(got)["mcpServers"]["s"] == {"command": "x", "args": []}


@pytest.mark.parametrize("between", [", ", ",\n  ", " , ", ", /* mine */ "])
def test_an_address_stands_where_its_command_stood(between: str) -> None:
    text = f'{{"mcpServers": {{"s": {{"command": "holdfast"{between}"args": ["wrap", "--url", "http://h"], "n": 1}}}}}}'

    comment = "/* mine */ " if "mine" in between else ""
    assert unwrap(text, "file").text == f'{{"mcpServers": {{"s": {{{comment}"url": "http://h", "n": 1}}}}}}'


def test_a_type_that_is_null_stays_null() -> None:
    text = config(s={"type": None, "url": "http://localhost/mcp"})

    assert unwrap(wrap(text, "file", HOLDFAST).text, "file").text == text


def test_a_header_that_was_edited_since_stays() -> None:
    text = wrap(config(s={"url": "http://h", "headers": {"A": "old", "B": "b"}}), "file", HOLDFAST).text

    got = read(unwrap(text.replace('"old"', '"new"'), "file").text)

    assert got["mcpServers"]["s"] == {"url": "http://h", "headers": {"A": "new", "B": "b"}}


@pytest.mark.parametrize("place", ['"env": {', '"HOLDFAST_HEADER_A": "a", ', '"HOLDFAST_HEADER_B": "b"'])
def test_variables_that_were_added_to_those_of_headers_stay_variables(place: str) -> None:
    text = wrap(config(s={"url": "http://h", "headers": {"A": "a", "B": "b"}}), "file", HOLDFAST).text
    more = ', "NO_PROXY": "*"' if place.endswith('"') else '"NO_PROXY": "*", '

    got = read(unwrap(text.replace(place, place + more), "file").text)

    assert got["mcpServers"]["s"] == {"url": "http://h", "headers": {"A": "a", "B": "b"}, "env": {"NO_PROXY": "*"}}


@pytest.mark.parametrize(
    "words", [["--header", "A: b: c"], ["--header=A:b: c"], ["--header", "A: x", "--header", "A: b: c"]]
)
def test_a_header_among_the_arguments_of_ones_own_entry_is_one_of_the_server_again(words: list[str]) -> None:
    text = config(s={"command": "holdfast", "args": ["wrap", "--url", "http://h", *words, "--name", "s"]})

    result = unwrap(text, "file")

    assert only(text).headers == {"A": "b: c"}
    assert read(result.text)["mcpServers"]["s"] == {"url": "http://h", "headers": {"A": "b: c"}}


@pytest.mark.parametrize("more", [{}, {"NO_PROXY": "*"}])
def test_headers_of_arguments_and_of_variables_come_together(more: dict[str, str]) -> None:
    args = ["wrap", "--header", "-A: a", "--url", "http://h", "--header-env", "B=TOKEN"]
    text = config(s={"args": args, "env": {"TOKEN": "b", **more}, "command": "holdfast"})

    got = read(unwrap(text, "file").text)

    assert got["mcpServers"]["s"] == {"url": "http://h", "headers": {"-A": "a", "B": "b"}, "env": more}


def test_a_header_may_come_from_the_environment_of_who_reads_the_file() -> None:
    text = config(s={"command": "holdfast", "args": ["wrap", "--url", "http://h", "--header-env", "A=TOKEN"]})

    (found,) = servers(text, "file", {"TOKEN": "t"})

    assert found.headers == {"A": "t"}


def test_an_entry_whose_header_is_held_elsewhere_is_left_alone() -> None:
    text = config(s={"command": "holdfast", "args": ["wrap", "--url", "http://h", "--header-env", "A=TOKEN"]})

    result = unwrap(text, "file")

    assert result.text == text
    assert result.outcomes[0].why == "env does not hold TOKEN, from which its header 'A' comes"


def test_a_comment_of_ones_own_between_command_and_arguments_stays() -> None:
    text = wrap('{"mcpServers": {"s": {"command": "x", "cwd": "/"}}}', "file", HOLDFAST).text
    edited = text.replace('"args"', '/* mine */ "args"')

    assert unwrap(edited, "file").text == '{"mcpServers": {"s": {"command": "x", /* mine */ "cwd": "/"}}}'


def test_what_is_not_wrapped_is_not_unwrapped() -> None:
    text = config(s={"command": "npx", "args": ["wrap", "--", "x"]})

    assert unwrap(text, "file") == (text, [("s", None, "not wrapped", None)])


# --- reading, as the gateway does ---


def test_a_server_is_read_with_all_that_is_needed_to_run_it() -> None:
    found = only(
        config(s={"command": "x", "args": ["y"], "env": {"A": "a", "N": 1, "U": None}, "cwd": "/", "disabled": True})
    )

    assert found == ServerEntry(
        name="s", transport="stdio", command="x", args=("y",), env={"A": "a", "N": "1"}, cwd="/", disabled=True
    )


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"url": "https://h/mcp"}, "http"),
        ({"url": "https://h/sse"}, "sse"),
        ({"url": "https://h/sse", "type": "http"}, "http"),
        ({"url": "https://h", "type": "streamable-http"}, "http"),
        ({"url": "https://h", "type": "sse"}, "sse"),
        ({"command": "x"}, "stdio"),
        ({"command": "x", "type": "local"}, "stdio"),
    ],
)
def test_how_a_server_is_spoken_to_follows_from_type_and_address(entry: dict[str, object], transport: str) -> None:
    assert only(config(s=entry)).transport == transport


def test_placeholders_stay_for_the_client_to_fill_in() -> None:
    found = only(config(s={"url": "${env:U}/mcp", "headers": {"A": "Bearer ${input:t}"}}))

    assert (found.url, found.headers) == ("${env:U}/mcp", {"A": "Bearer ${input:t}"})


def test_placeholders_are_filled_in_where_somebody_stands_in_the_client_s_place() -> None:
    far = {"url": "${env:U}/mcp", "headers": {"A": "Bearer ${T}"}}
    near = {"command": "${HERE:-/x}/run", "args": ["${T}", "$T ${f%.*} ${1}"], "env": {"E": "${T}"}, "cwd": "${T}"}

    found = servers(config(far=far, near=near), "file", {"U": "http://h", "T": "t"})

    assert found == [
        ServerEntry(name="far", transport="http", url="http://h/mcp", headers={"A": "Bearer t"}),
        ServerEntry(name="near", command="/x/run", args=("t", "$T ${f%.*} ${1}"), env={"E": "t"}, cwd="t"),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Bearer ${input:t}", "${input:t} is for its client to fill in; ${env:NAME} is a variable"),
        ("${env:T}", "${env:T} cannot be filled in: there is no such variable"),
        ("${workspaceFolder}", "${workspaceFolder} cannot be filled in: there is no such variable"),
    ],
)
def test_a_placeholder_that_cannot_be_filled_in_is_a_problem_of_the_server(text: str, problem: str) -> None:
    off = {"command": text, "disabled": True}

    found = servers(config(far={"url": "http://h", "headers": {"A": text}}, near={"command": text}, off=off), "f", {})

    assert [entry.problem for entry in found] == [problem, problem, None]


def test_a_mistake_in_one_entry_is_the_problem_of_that_server() -> None:
    listed = {"a": {}, "b": {"command": 1, "disabled": True}, "good": {"command": "x"}}
    text = json.dumps({"servers": listed, "projects": {"/p": {"mcpServers": {"c": 0}}}})

    found = servers(text, "mcp.json")

    assert [(entry.name, entry.project, entry.disabled, entry.problem) for entry in found] == [
        ("a", None, False, "has neither command nor url"),
        ("b", None, True, "command must be a text"),
        ("good", None, False, None),
        ("c", "/p", False, "must be an object"),
    ]


def test_a_header_that_nobody_holds_is_a_problem_of_the_server() -> None:
    text = config(s={"command": "holdfast", "args": ["wrap", "--url", "http://h", "--header-env", "A=TOKEN"]})

    (found,) = servers(text, "file", {})

    assert found.problem == "the variable TOKEN is not set, from which a header comes"


def test_variables_that_hold_headers_are_none_of_the_server() -> None:
    entry = {"url": "http://h/mcp", "headers": {"A": "a"}}
    there = wrap(config(s=entry), "file", HOLDFAST).text.replace('"env": {', '"env": {"B": "b", ')

    found = only(there)

    assert (found.headers, found.env) == ({"A": "a"}, {"B": "b"})


def test_the_value_of_an_option_is_never_taken_for_the_end_of_options() -> None:
    found = wrapping_of("holdfast", ["wrap", "--name", "--", "--", "x"])

    assert found is not None
    assert found.command == 4


# --- where clients keep their files ---


@pytest.mark.parametrize(
    ("client", "platform", "expected"),
    [
        ("claude-desktop", "darwin", ["/home/u/Library/Application Support/Claude/claude_desktop_config.json"]),
        ("claude-desktop", "linux", ["/home/u/.config/Claude/claude_desktop_config.json"]),
        ("cursor", "linux", ["/home/u/.cursor/mcp.json"]),
        ("vscode", "linux", ["/work/.vscode/mcp.json", "/home/u/.config/Code/User/mcp.json"]),
        ("vscode", "darwin", ["/work/.vscode/mcp.json", "/home/u/Library/Application Support/Code/User/mcp.json"]),
        ("claude-code", "darwin", ["/work/.mcp.json", "/home/u/.claude.json"]),
    ],
)
def test_a_client_has_its_file_where_its_makers_put_it(client: str, platform: str, expected: list[str]) -> None:
    assert places(client, folder="/work", home="/home/u", platform=platform, environment={}) == expected


def test_the_environment_may_move_the_files() -> None:
    environment = {"XDG_CONFIG_HOME": "/conf", "CLAUDE_CONFIG_DIR": "/claude"}

    found = {
        client: places(client, folder="/work", home="/home/u", platform="linux", environment=environment)[-1]
        for client in CLIENTS
    }

    assert found == {
        "claude-desktop": "/conf/Claude/claude_desktop_config.json",
        "cursor": "/home/u/.cursor/mcp.json",
        "vscode": "/conf/Code/User/mcp.json",
        "claude-code": "/claude/.claude.json",
    }
