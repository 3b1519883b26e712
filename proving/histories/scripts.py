"""Lua for the in-process Redis: scripts see KEYS, ARGV and redis.call, as Redis 7's do, in Lua 5.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lupa import lua51

NO_OOM = b"allow-oom"


class Scripts:
    """One interpreter, and the scripts that it has compiled. Its memory is never freed, so there is only one.

    call: runs a command of the script that is run.
    """

    call: Callable[[list[bytes]], Any]

    def __init__(self) -> None:
        self.lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)
        self.compiled: dict[bytes, Any] = {}
        lua = self.lua.globals()
        lua[b"call"] = lambda *words: self.to_lua(self.call([as_bytes(word) for word in words]))
        self.lua.execute(
            b"""
            local call_ = call
            call = nil
            redis = {
              call = function(...) return call_(...) end,
              error_reply = function(text) return {err = text} end,
              status_reply = function(text) return {ok = text} end,
            }
            """
        )

    def run(self, text: bytes, keys: list[bytes], arguments: list[bytes], call: Callable[[list[bytes]], Any]) -> Any:
        self.call = call
        script = self.compiled.get(text)
        if script is None:
            body = text.partition(b"\n")[2] if text.startswith(b"#!") else text
            script = self.compiled[text] = self.lua.execute(b"return function(KEYS, ARGV)\n" + body + b"\nend")
        return self.from_lua(script(self.lua.table(*keys), self.lua.table(*arguments)))

    def to_lua(self, reply: Any) -> Any:
        """A reply as a script sees it (Redis's "Lua API": RESP2 to Lua)."""
        if reply is None:
            return False
        if isinstance(reply, (list, tuple)):
            return self.lua.table(*map(self.to_lua, reply))
        if isinstance(reply, str):
            return self.lua.table_from({b"ok": reply.encode()})
        if isinstance(reply, dict):
            return self.lua.table(*(word for pair in reply.items() for word in pair))
        if isinstance(reply, float):
            return number(reply)
        return reply

    def from_lua(self, value: Any) -> Any:
        """What a script returns, as a reply: a number loses its fraction, a list ends before its first nil."""
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if isinstance(value, (int, float)):
            return int(value)
        if isinstance(value, bytes):
            return value
        if value[b"err"] is not None:
            return ScriptError(value[b"err"].decode())
        if value[b"ok"] is not None:
            return value[b"ok"].decode()
        reply: list[Any] = []
        while (item := value[len(reply) + 1]) is not None:
            reply.append(self.from_lua(item))
        return reply


class ScriptError(Exception):
    """An error reply."""


def as_bytes(word: Any) -> bytes:
    """An argument of a command: Lua's numbers are converted as `tostring` does, with 14 digits in Redis 7 ("%.17g")."""
    return word if isinstance(word, bytes) else number(word)


def number(value: float) -> bytes:
    """A number as Redis writes it."""
    if value == int(value) and abs(value) < 1e17:
        return b"%d" % int(value)
    return b"%.17g" % value


SCRIPTS = Scripts()
