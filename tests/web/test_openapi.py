"""The description of the API is true: schemathesis asks the running server whatever it allows, and what it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.web.conftest import TOKEN, Ui, get, serving, warm

import holdfast
from holdfast.web.openapi import description

schema = schemathesis.openapi.from_dict(json.loads(description("holdfast_1")))

# Headers of the connection: what is wrong with them is answered before the application sees the request.
FRAMING = {"connection", "content-length", "expect", "host", "transfer-encoding", "upgrade"}
METHODS = {"get", "post", "put", "patch", "delete", "options", "head", "trace"}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """A server over a store that has some of everything."""
    path = tmp_path_factory.mktemp("filled") / "runs.db"
    with serving(path) as ui:
        warm(ui)
        fill(path)
        ui.store.create_run("s", "p", run_id="waiting")
        yield ui


def fill(path: Path) -> None:
    with holdfast.open(path, policies={}) as hf:

        @hf.tool("search")
        def search() -> str:
            return "found"

        with hf.run(run_id="done"):
            search()
        with pytest.raises(RuntimeError), hf.run(run_id="failed"):
            raise RuntimeError("oh")


@pytest.fixture(scope="module")
def described(filled: Ui) -> Any:
    return filled.get("/openapi.json")


def routes(ui: Ui) -> set[tuple[str, str]]:
    found = set()
    for route in ui.app.routes:
        for method in (route.methods or set()) - {"HEAD"}:
            found.add((route.path.replace("{file:path}", "{file}"), method.lower()))
    return found


def operations(described: Any) -> set[tuple[str, str]]:
    return {(path, verb) for path, verbs in described["paths"].items() for verb in verbs if verb in METHODS}


def test_every_route_is_described_and_no_other(filled: Ui, described: Any) -> None:
    assert operations(described) == routes(filled)


def test_every_reference_leads_somewhere(described: Any) -> None:
    schemas = described["components"]["schemas"]

    def references(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key == "$ref":
                    yield str(inner)
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    found = set(references(described))
    assert found
    assert {each.removeprefix("#/components/schemas/") for each in found} <= schemas.keys()


def test_the_cookie_that_is_described_is_the_one_that_is_given(filled: Ui, described: Any) -> None:
    answer = get(f"{filled.url}/?token={TOKEN}")

    assert list(answer.cookies) == [described["components"]["securitySchemes"]["cookie"]["name"]]


# Streams are left out, as they do not end: they have tests of their own.
@schema.exclude(path_regex="stream$").parametrize()
@settings(max_examples=20, deadline=None, suppress_health_check=[*HealthCheck])
def test_no_answer_is_a_failure_or_undescribed(case: schemathesis.Case, filled: Ui) -> None:
    # That one filter is needed cannot be described.
    without = [positive_data_acceptance] if case.path == "/api/runs/cancel" else []
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for name in [name for name in case.headers or () if name.lower() in FRAMING]:
        del case.headers[name]

    case.call_and_validate(base_url=filled.url, headers=headers, excluded_checks=without)


def test_the_document_lists_every_route_and_parameter(filled: Ui, described: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / "ui.md").read_text("utf-8")

    listed = {(path, verb.lower()) for verb, path in re.findall(r"^\| `(GET|POST) (\S+)` \|", text, re.MULTILINE)}
    finding = text.partition("### Finding runs")[2].partition("###")[0]
    parameters = {each["name"] for each in described["paths"]["/api/runs"]["get"]["parameters"]}

    assert listed == routes(filled)
    assert set(re.findall(r"^\| `(\w+)` \|", finding, re.MULTILINE)) == parameters


def test_the_document_lists_every_code_that_is_given() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "ui.md").read_text("utf-8")
    code = "".join(path.read_text("utf-8") for path in (root / "src" / "holdfast" / "web").glob("*.py"))

    given = set(re.findall(r'Problem\(\s*\d{3},\s*"(\w+)"', code)) | {"token_missing", "token_wrong", "bad_request"}
    table = text.partition("| status | codes |")[2].partition("###")[0]

    assert set(re.findall(r"`(\w+)`", table)) == given - {"failed"}  # which is nobody's to expect
