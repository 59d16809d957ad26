"""The floors: one EVALSHA of a script that does nothing but a token bucket, through redis-py and over a bare socket.

Over the bare socket our own script is asked too: what is left between that row and ours is what our Python costs.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
from collections import deque
from typing import Any
from urllib.parse import urlsplit

from bench.fleet_peers import LIMIT, Made, Make

# GCRA on the server's time, as short as it can be.
BUCKET = b"""
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local at = tonumber(redis.call('GET', KEYS[1])) or now
if at < now then at = now end
if at - now > ARGV[2] - ARGV[1] then return {0, tostring(at - now)} end
redis.call('SET', KEYS[1], string.format('%.17g', at + ARGV[1]), 'EX', 60)
return {1, '0'}
"""
ASKED = ("floor", 1 / LIMIT, 1.0)
BUFFER = 65_536
_ASKED = re.compile(rb'"EVALSHA" .*\r\n')
_PART = re.compile(rb'"((?:[^"\\\\]|\\\\.)*)"')
TOGETHER = 64

SOCKET = "bare socket, token bucket"
OUR_SCRIPT = "bare socket, our script"


def plain(*, ours: bool) -> dict[str, Make]:
    """For functions; with *ours* our script too."""
    rows: dict[str, Make] = {"redis-py EVALSHA, token bucket": _redis_py, SOCKET: lambda url: _bare(url, bucket(url))}
    if ours:
        rows[OUR_SCRIPT] = lambda url: _bare(url, our_question(url))
    return rows


def awaited(*, ours: bool) -> dict[str, Make]:
    """For coroutines, all on one connection but for redis-py's, which has one for each that waits."""
    rows: dict[str, Make] = {"redis-py EVALSHA, token bucket": _aredis_py, SOCKET: lambda url: _abare(url, bucket(url))}
    if ours:
        rows[OUR_SCRIPT] = lambda url: _abare(url, our_question(url))
    return rows


def _redis_py(url: str) -> Made:
    import redis

    client = redis.Redis.from_url(url)
    digest = client.script_load(BUCKET)
    return Made(lambda: client.evalsha(digest, 1, *ASKED), client.close)


def _aredis_py(url: str) -> Made:
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(url)
    bucket(url)
    digest = hashlib.sha1(BUCKET, usedforsecurity=False).hexdigest()
    return Made(lambda: client.evalsha(digest, 1, *ASKED), client.aclose)


def _bare(url: str, question: bytes) -> Made:
    """Send, receive, parse."""
    import hiredis

    connection = connected(url)
    reader = hiredis.Reader()

    def decide() -> Any:
        connection.sendall(question)
        while (reply := reader.gets()) is False:
            reader.feed(connection.recv(BUFFER))
        return reply

    return Made(decide, connection.close)


def _abare(url: str, question: bytes) -> Made:
    """A future a question; those of one turn of the loop are sent together."""
    import hiredis

    loop = asyncio.get_running_loop()
    connection = connected(url)
    connection.setblocking(False)
    reader = hiredis.Reader()
    waiting: deque[asyncio.Future[Any]] = deque()
    asked = 0

    def send() -> None:
        nonlocal asked
        data, asked = question * asked, 0
        if connection.send(data) != len(data):
            raise AssertionError("more at once than a socket takes")

    def receive() -> None:
        reader.feed(connection.recv(BUFFER))
        while (reply := reader.gets()) is not False:
            waiting.popleft().set_result(reply)

    def decide() -> asyncio.Future[Any]:
        nonlocal asked
        if not asked:
            loop.call_soon(send)
        asked += 1
        waiting.append(loop.create_future())
        return waiting[-1]

    async def close() -> None:
        loop.remove_reader(connection)
        connection.close()

    loop.add_reader(connection, receive)
    return Made(decide, close)


def piped(url: str, question: bytes) -> Made:
    """As many questions as there are coroutines elsewhere, sent together and answered together, with nobody waiting.

    One call makes them all: what the server can do, about.
    """
    import hiredis

    connection = connected(url)
    reader = hiredis.Reader()
    data = question * TOGETHER

    def decide() -> None:
        connection.sendall(data)
        for _ in range(TOGETHER):
            while reader.gets() is False:
                reader.feed(connection.recv(BUFFER))

    return Made(decide, connection.close)


def bucket(url: str) -> bytes:
    """The question to the token bucket, which the server knows from now on."""
    _tell(url, "SCRIPT", "LOAD", BUCKET)
    digest = hashlib.sha1(BUCKET, usedforsecurity=False).hexdigest()
    return packed("EVALSHA", digest, 1, *ASKED)


def our_question(url: str) -> bytes:
    """The question that a call of ours asks, with a circuit and a rate, as the server was seen to get it.

    No concurrency: nobody gives the slots back here.
    """
    from bench.fleet_ours import TWO, exact

    made = exact(awaited=False)[TWO](url)
    try:
        made.decide()
        with connected(url) as watcher:
            watcher.sendall(packed("MONITOR"))
            seen = watcher.recv(BUFFER)
            made.decide()
            while not (asked := _ASKED.search(seen)):
                seen += watcher.recv(BUFFER)
    finally:
        made.close()
    parts = [part.decode("unicode_escape").encode("latin1") for part in _PART.findall(asked[0])]
    return packed(*parts)


def connected(url: str) -> socket.socket:
    """A connection with nothing around it."""
    place = urlsplit(url)
    connection = socket.create_connection((place.hostname, place.port), timeout=10.0)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def packed(*parts: str | bytes | float) -> bytes:
    """A command as it goes over the wire."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in encoded)


def _tell(url: str, *parts: str | bytes) -> None:
    with connected(url) as connection:
        connection.sendall(packed(*parts))
        if connection.recv(BUFFER)[:1] == b"-":
            raise AssertionError(f"the server refused {parts[:2]}")
