"""What a proxied server is called, and how its command is shown."""

from __future__ import annotations

import pytest

from holdfast.mcp.naming import name_of, name_of_url, shown, shown_url


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("npx -y @modelcontextprotocol/server-everything@latest stdio", "server-everything"),
        ("uvx mcp-server-time", "mcp-server-time"),
        ("/usr/bin/python3.11 -m my.server", "my-server"),
        ("python /opt/tools/server.py", "server"),
        ("docker run -i --rm -e GITHUB_TOKEN=1 ghcr.io/github/github-mcp-server", "github-mcp-server"),
        ("./my-server", "my-server"),
        ("node /home/me/weather/dist/index.js", "weather"),
        ("npx tsx ./src/index.ts", "index"),
        ("npx @playwright/mcp@latest --headless", "playwright"),
        ("npx -y @sentry/mcp-server", "sentry"),
        ("uvx mcp-server-time==2026.1.1", "mcp-server-time"),
        ("java -jar /opt/files.jar", "files"),
        ("node", "node"),
        ("///", "server"),
    ],
)
def test_a_server_is_called_after_its_package_or_script(command: str, name: str) -> None:
    assert name_of(command.split()) == name


def test_a_server_behind_an_address_is_called_after_its_host() -> None:
    assert name_of_url("https://mcp.example.com:8000/mcp") == "mcp-example-com"
    assert name_of_url("nonsense") == "server"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["npx", "a b"], "npx 'a b'"),
        (["s", "--api-key", "sk-1", "--port", "1"], "s --api-key [redacted] --port 1"),
        (["s", "--token=abc", "GITHUB_TOKEN=x"], "s --token=[redacted] GITHUB_TOKEN=[redacted]"),
        (["s", "--oauth2Bearer", "t"], "s --oauth2Bearer [redacted]"),
        (["s", "--token", "--verbose"], "s --token --verbose"),
        (["s", "https://user:pass@host/x"], "s https://host/x"),
        (["s", "--header", "Authorization: Bearer t"], "s --header 'Authorization: '[redacted]"),
        (["s", "--header", "X-Api-Key:t"], "s --header X-Api-Key:[redacted]"),
        (["s", "--header=Authorization: Bearer t"], "s '--header=Authorization: '[redacted]"),
        (["s", "--config", '{"apiKey":"t","n":1}'], """s --config '{"apiKey":"[redacted]","n":1}'"""),
        (["env", "DATABASE_URL=postgres://u:p@host/x", "s"], "env DATABASE_URL=postgres://host/x s"),
        (["env", "API_KEY=https://t", "s"], "env API_KEY=[redacted] s"),
        (["sh", "-c", "npx s --api-key t"], "sh -c 'npx s --api-key '[redacted]"),
        (["s", "C:/x", "a:b", "--c=d:e"], "s C:/x a:b --c=d:e"),
        (["s", '--config={"n":1,"apiKey":"t"}'], """s '--config={"n":1,"apiKey":'[redacted]"""),
        (["sh", "-c", r's -c "{\"token\": \"t\"}"'], r"""sh -c 's -c "{\"token\": '[redacted]"""),
        (
            ["sh", "-c", "s https://host --header 'Cookie: t'"],
            """sh -c 's 'https://host' --header '"'"'Cookie: '[redacted]""",
        ),
        (["sh", "-c", "s https://a && t https://u:p@b/"], "sh -c 's 'https://a' && t 'https://b/"),
        (["s", "http://a,http://u:p@b"], "s http://a,http://b"),
    ],
)
def test_secrets_of_a_command_are_not_shown(command: list[str], text: str) -> None:
    assert shown(command) == text


def test_secrets_of_an_address_are_not_shown() -> None:
    assert shown_url("https://u:p@host:1/mcp?api_key=1&page=2") == "https://host:1/mcp?api_key=[redacted]&page=2"
    assert shown_url("https://host/mcp") == "https://host/mcp"
    assert (
        shown_url('https://host/?config={"apiKey":"1"}') == "https://host/?config=%7B%22apiKey%22%3A%22[redacted]%22%7D"
    )
    assert shown_url("http://[bad") == "[redacted]"


@pytest.mark.parametrize("sign", "/?#")
def test_a_password_that_ends_the_host_too_early_is_not_shown(sign: str) -> None:
    assert shown_url(f"postgres://u:p{sign}s3cret@host/db") == "[redacted]"
    assert shown(["s", f"postgres://u:p{sign}s3cret@host/db", "x"]) == "s [redacted] x"
