"""The policy file: it is read whole or not at all, and its metadata tell whether it has changed."""

from __future__ import annotations

import os
import stat
from typing import Any, Final

from holdfast import checks
from holdfast.policy.mistakes import broken

MOST_BYTES: Final = 1_000_000
Signature = tuple[int, ...]


def glance(path: str) -> Signature | None:
    """Return a signature that differs after the file was changed, rewritten or replaced; None if there is no file."""
    try:
        return _signature(os.stat(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        return (error.errno or 0,)


def read_file(path: str, name: str) -> tuple[dict[str, Any], Signature]:
    """The document in the file at *path*, which errors call *name*, and the signature of exactly that file."""
    if not name:
        raise broken(["the name of the policy file must not be empty"])
    data, signature = _bytes(path, name)
    if len(data) > MOST_BYTES:
        raise broken([f"{name}: is larger than {MOST_BYTES:,} bytes, too large for policies"])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise broken([f"{name}: is not UTF-8 text (at line {line})"]) from None
    import tomllib  # most processes have no file

    try:
        return tomllib.loads(text), signature
    except RecursionError:
        raise broken([f"{name}: is not TOML that can be read: nested too deeply"]) from None
    except ValueError as error:  # also a number with more digits than Python reads
        where = f"at line {text.rstrip().count(chr(10)) + 1}, the end of the document"
        raise broken([f"{name}: is not TOML: {str(error).replace('at end of document', where)}"]) from None


def absolute_store(store: str, path: str) -> str:
    """*store* as the file at the absolute *path* means it: relative paths start at the file's folder."""
    scheme, slashes, rest = store.partition(":///")
    local = rest if slashes and scheme == "sqlite" else store
    if local in {"", ":memory:"} or local.startswith(("~", ":memory:?")) or "://" in local:
        return store
    if local is store and not checks.is_path(store):  # the code that opens it reports what is wrong with it
        return store
    found = os.path.join(os.path.dirname(path), local)
    return found if local is store else f"sqlite:///{found}"


def _bytes(path: str, name: str) -> tuple[bytes, Signature]:
    try:
        kind = os.stat(path).st_mode
        if stat.S_ISREG(kind):  # anything else might block, or never end
            with open(path, "rb") as file:
                signature = _signature(os.fstat(file.fileno()))  # before reading: a change meanwhile is seen later
                return file.read(MOST_BYTES + 1), signature
    except FileNotFoundError:
        raise broken([f"{name}: does not exist"]) from None
    except (OSError, ValueError) as error:
        raise broken([f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from error
    raise broken([f"{name}: is {'a directory' if stat.S_ISDIR(kind) else 'no regular file'}, not a policy file"])


def _signature(status: os.stat_result) -> Signature:
    # The ctime, too: programs that unpack or copy files may restore the mtime, and a corrected mode leaves it as it is.
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev)
