"""A real server on loopback over a real store, and what to ask it with."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from holdfast.policy import PolicyBook
from holdfast.stores import SqliteRunStore
from holdfast.web.app import App
from holdfast.web.desk import THREADS
from holdfast.web.security import rules
from holdfast.web.serving import Server, bind

TOKEN = "a-token-of-enough-letters"
LIMIT = 40.0  # seconds after which a test gives up waiting for what comes within one

get = partial(httpx.get, timeout=LIMIT)
post = partial(httpx.post, timeout=LIMIT)


class Message(NamedTuple):
    """One server-sent event."""

    id: str
    event: str
    data: Any


class Ui(NamedTuple):
    """A server that runs, its store, and a client that has its token."""

    url: str
    port: int
    store: SqliteRunStore
    client: httpx.Client
    app: App
    server: Server

    def get(self, path: str, **more: Any) -> Any:
        """What is answered, which must be good."""
        answer = self.client.get(path, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, **more: Any) -> Any:
        """The same of an order."""
        answer = self.client.post(path, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    @contextmanager
    def stream(self, path: str = "/api/stream", last: str | None = None) -> Iterator[Iterator[Message]]:
        """The events of a stream, as they come."""
        headers = {} if last is None else {"Last-Event-ID": last}
        with self.client.stream("GET", path, headers=headers) as answer:
            assert answer.status_code == 200
            yield messages(answer.iter_lines())


def messages(lines: Iterator[str]) -> Iterator[Message]:
    """Lines put together; signs of life are left out."""
    facts: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            facts[name] = value
        else:
            if "data" in facts:
                yield Message(facts.get("id", ""), facts.get("event", "message"), json.loads(facts["data"]))
            facts = {}


def next_of(found: Iterator[Message], event: str, fits: Callable[[Any], bool] = lambda data: True) -> Message:
    """The next message of a kind."""
    return next(each for each in found if each.event == event and fits(each.data))


@contextmanager
def serving(
    path: Path, *, token: str | None = TOKEN, policies: Mapping[str, object] | None = None, **how: Any
) -> Iterator[Ui]:
    """A server on the store at *path*, in a thread of its own."""
    listening = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    ready = threading.Event()
    url, headers = f"http://127.0.0.1:{port}", {} if token is None else {"Authorization": f"Bearer {token}"}
    with SqliteRunStore(path) as store, httpx.Client(base_url=url, headers=headers, timeout=LIMIT) as client:
        app = App(store, rules("127.0.0.1", port, token=token, **how), book=PolicyBook.load(policies))
        server = Server(app, on_ready=ready.set)
        thread = threading.Thread(target=server.answer, args=(listening,))
        thread.start()
        try:
            assert ready.wait(LIMIT)
            yield Ui(url, port, store, client, app, server)
        finally:
            server.stop()
            thread.join()


@pytest.fixture
def serve(path: Path) -> Iterator[Callable[..., Ui]]:
    """Starts servers on the store at *path*."""
    with ExitStack() as stack:
        yield lambda **how: stack.enter_context(serving(path, **how))


@pytest.fixture
def ui(serve: Callable[..., Ui]) -> Ui:
    return serve()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """A server for tests that change nothing."""
    with serving(tmp_path_factory.mktemp("calm") / "runs.db") as ui:
        warm(ui)
        yield ui


def warm(ui: Ui) -> None:
    """Begin all threads of a server that several tests share: none is left behind by the first that needs one."""
    met = threading.Barrier(THREADS)
    list(ui.app.desk._threads.map(lambda _: met.wait(LIMIT), range(THREADS)))
