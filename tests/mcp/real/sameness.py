"""When two talks are the same: frame for frame, byte for byte, after what truly varies was given one name.

Times, random ids and the level of a random log message vary; nothing else is forgiven.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from itertools import zip_longest

from tests.mcp.real.wire import Scene, Talk

VARIES = (
    (re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), b"<uuid>"),
    (re.compile(rb'(?<="taskId":")[0-9a-f]{32}'), b"<task>"),
    (re.compile(rb"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)"), b"<moment>"),
    (re.compile(rb"\b\d{1,2}:\d\d:\d\d(\s|\xe2\x80\xaf)[AP]M"), b"<time>"),
    (re.compile(rb'(?<=\\"PORT\\": \\")\d+'), b"<port>"),
    (re.compile(rb'"level":"\w+","data":"\w+[ -]level[ -]message'), b'"level":"<any>","data":"a message'),
)
BLOB = re.compile(rb'(?<="blob":")[A-Za-z0-9+/=]+(?=")')


def normal(line: bytes) -> bytes:
    """The line with every value that truly varies replaced by its name."""
    line = BLOB.sub(lambda found: _normal_blob(found[0]), line)
    for pattern, name in VARIES:
        line = pattern.sub(name, line)
    return line


def differences(one: Talk, other: Talk) -> list[str]:
    """What is not the same in the two talks; an empty list where all is."""
    mine, theirs = _parts(one), _parts(other)
    found = []
    for name in {**mine, **theirs}:
        nothing = Scene(name, ordered=True, frames=[])
        for sender in ("client", "server"):
            found += _unlike(mine.get(name, nothing), theirs.get(name, nothing), sender)
    return found


def _parts(talk: Talk) -> dict[str, Scene]:
    """Over a pipe the scenes; over HTTP the streams, since between two of them there is no order."""
    streams = sorted({frame.stream for frame in talk.frames if frame.stream})
    if not streams:
        return {scene.name: scene for scene in talk.scenes}
    spoken = [frame for frame in talk.frames if frame.sender == "client"]
    said = {name: [frame for frame in talk.frames if frame.stream == name] for name in streams}
    parts = {name: Scene(name, ordered=True, frames=frames) for name, frames in said.items()}
    return {**parts, "client": Scene("client", ordered=False, frames=spoken)}


def _unlike(one: Scene, other: Scene, sender: str) -> list[str]:
    mine, theirs = _lines(one, sender), _lines(other, sender)
    if not one.ordered:
        lost, gained = Counter(mine) - Counter(theirs), Counter(theirs) - Counter(mine)
        return [
            f"{one.name}: {sender} {what} {line[:500]!r}"
            for what, lines in (("lost", lost), ("gained", gained))
            for line in lines
        ]
    return [
        f"{one.name}: frame {n} of the {sender}\n  {a[:500]!r}\n  {b[:500]!r}"
        for n, (a, b) in enumerate(zip_longest(mine, theirs, fillvalue=b"<nothing>"))
        if a != b
    ][:3]


def _lines(scene: Scene, sender: str) -> list[bytes]:
    return [normal(frame.raw) for frame in scene.frames if frame.sender == sender]


def _normal_blob(blob: bytes) -> bytes:
    text = base64.b64decode(blob)
    return base64.b64encode(normal(text)) if b"created at" in text else blob
