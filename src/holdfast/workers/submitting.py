"""Submitting: writes a run into the store, with the function to be called, for any worker to take.

The function is not imported here: the process that submits need not have its code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast import checks
from holdfast.errors import ConfigError
from holdfast.history import RunSnapshot
from holdfast.runs.identity import KEY_SCHEME
from holdfast.stores import RunStore, queue


def submit(
    store: RunStore,
    target: str | Callable[..., object],
    args: Sequence[object] = (),
    *,
    session: str = "default",
    prompt: str = "",
    priority: int = 0,
    run_id: str | None = None,
) -> RunSnapshot:
    """Put a run of *target*, `module:function` or a function that can be imported, into the queue.

    *args* must be JSON values. Called again with the same *run_id* and otherwise equal, returns the run that is there.
    """
    name = target_of(target)
    checks.whole("priority", priority, least=queue.LEAST_PRIORITY, most=queue.MOST_PRIORITY)
    if isinstance(session, str) and "\0" in session:
        raise ConfigError(f"session = {checks.shown(session)}: must not contain a NUL")
    entry = {"target": name, "args": [checks.plain(f"argument {at}", value) for at, value in enumerate(args, 1)]}
    return queue.submit(store, store.header(session, prompt, run_id, entry=entry, priority=priority, keys=KEY_SCHEME))


def target_of(target: object) -> str:
    """Return the name under which a worker finds *target*; raise `ConfigError` if no worker could."""
    name = target if isinstance(target, str) else _name(target)
    module, _, path = name.partition(":")
    if len(name) > 500 or not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise ConfigError(f"target = {checks.shown(target)}: must be MODULE:FUNCTION, such as 'agent:main'")
    return name


def _name(function: object) -> str:
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not callable(function) or not isinstance(module, str) or not isinstance(path, str) or "<" in path:
        raise ConfigError(
            f"target = {checks.shown(function)}: must be MODULE:FUNCTION, or a function that a module has by name"
        )
    if module == "__main__":
        raise ConfigError(
            f"target = {checks.shown(function)}: is in the script that was started, where no worker finds it; move it "
            "to a module, or name it as MODULE:FUNCTION"
        )
    return f"{module}:{path}"
