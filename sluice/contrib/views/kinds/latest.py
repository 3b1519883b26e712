"""`latest`: the newest record of a key, by its time, then by its sequence number, then by its JSON.

A value is a string: ORDER_BYTES that sort as time and sequence number do, and the JSON. With `each` it is a hash: JSON
of the `each` values -> such a string.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sluice.base.override import override
from sluice.contrib.views import contract
from sluice.contrib.views.kinds.followed import Followed, Reducer, script_calls
from sluice.contrib.views.kinds.view import ToJson

if TYPE_CHECKING:
    from sluice.contrib.views.link import Command, Place, Read
    from sluice.contrib.views.render import Rendered, Renderer, Stamp

ORDER_BYTES = 40  # time (20 digits, ns since 1970 + 2^63) and sequence number (20 digits)

# Of a key, newest first: series are never deleted, and their number is the clients'. The hash has up to twice as many,
# so that it is seldom sorted.
MAX_EACH = 1_000

# Lua compares strings by the locale; the order of two values with equal time and sequence number is that of bytes.
BELOW = """
local function below(a, b)
  for at = 1, math.min(#a, #b) do
    local x, y = string.byte(a, at), string.byte(b, at)
    if x ~= y then return x < y end
  end
  return #a < #b
end
"""

# KEYS: lease, info, and the keys of the view. ARGV: token, room, and the values.
LATEST = f"""#!lua
{contract.HELD}{BELOW}{contract.ROOM}
for at = 3, #KEYS do
  local new = ARGV[at]
  local old = redis.call('GETRANGE', KEYS[at], 0, {ORDER_BYTES - 1})
  local order = string.sub(new, 1, {ORDER_BYTES})
  if old == '' then
    if fits(KEYS[at], new) then redis.call('SET', KEYS[at], new) end
  elseif old < order or (old == order and below(redis.call('GET', KEYS[at]), new)) then
    bytes = bytes + #new - redis.call('STRLEN', KEYS[at])
    redis.call('SET', KEYS[at], new)
  end
end
{contract.COUNT}
"""

# ARGV of each key: how many fields, and field, value …
EACH = f"""#!lua
{contract.HELD}{BELOW}{contract.ROOM}
local arg = 3
for at = 3, #KEYS do
  local last = arg + 2 * tonumber(ARGV[arg])
  if redis.call('EXISTS', KEYS[at]) == 1 or fits(KEYS[at], '') then
    for field = arg + 1, last, 2 do
      local new = ARGV[field + 1]
      local old = redis.call('HGET', KEYS[at], ARGV[field])
      local before, order = old and string.sub(old, 1, {ORDER_BYTES}), string.sub(new, 1, {ORDER_BYTES})
      if not old or before < order or (before == order and below(old, new)) then
        bytes = bytes + #new - (old and #old or -#ARGV[field] - {contract.ENTRY_BYTES})
        redis.call('HSET', KEYS[at], ARGV[field], new)
      end
    end
    if redis.call('HLEN', KEYS[at]) > {2 * MAX_EACH} then
      local all, order = redis.call('HGETALL', KEYS[at]), {{}}
      for field = 1, #all, 2 do order[#order + 1] = field end
      table.sort(order, function (a, b)
        local x, y = string.sub(all[a + 1], 1, {ORDER_BYTES}), string.sub(all[b + 1], 1, {ORDER_BYTES})
        return x > y or (x == y and below(all[b + 1], all[a + 1]))
      end)
      for n = {MAX_EACH + 1}, #order do
        bytes = bytes - #all[order[n]] - #all[order[n] + 1] - {contract.ENTRY_BYTES}
        redis.call('HDEL', KEYS[at], all[order[n]])
      end
    end
  end
  arg = last + 1
end
{contract.COUNT}
"""


@dataclass(frozen=True)
class Latest(Followed):
    """The newest record of a key; with `each`, of each of these values."""

    each: tuple[str, ...]

    @property
    @override
    def fields(self) -> tuple[str, ...]:
        return self.key, *self.each

    @property
    @override
    def string(self) -> bool:
        return not self.each

    @override
    def to_json(self) -> ToJson:
        return each_json if self.each else newest_json

    @override
    def reducer(self, renderer: Renderer) -> Reducer:
        return NewestOfEach(self, renderer) if self.each else Newest()

    @override
    def decode(self, reply: Any) -> Any:
        return served_fields(dict(zip(reply[::2], reply[1::2]))) if self.each else reply

    @override
    def may_serve(self, served: Any, expected: Any) -> bool:
        if self.each:
            return all(served.get(field, b"") >= value for field, value in expected.items())
        return bool(served >= expected)


def latest(stream: str, key: str, each: Collection[str] = ()) -> Latest:
    """A view with the newest record of a key, such as the position of a device.

    each: fields; the view then has the newest record for each of their values, such as each series of a name: the 1,000
        newest ones.
    """
    return Latest(stream, key, tuple(each))


def newest_json(place: Place, limit: int) -> bytes:
    data, start, stop = place
    return data[start + ORDER_BYTES : stop]


def each_json(values: list[bytes], limit: int) -> bytes:
    """The JSON of a value of a view with `each`, in the order of the fields."""
    pairs = sorted(served_fields(dict(zip(values[::2], values[1::2]))).items())
    return b"[%b]" % b",".join([value[ORDER_BYTES:] for _, value in pairs])


def served_fields(fields: dict[bytes, Any]) -> dict[bytes, Any]:
    """The fields of a value that are served."""
    if len(fields) <= MAX_EACH:
        return fields
    return dict(sorted(fields.items(), key=itemgetter(1), reverse=True)[:MAX_EACH])


class Newest(Reducer):
    """Without `each`: key -> the newest record."""

    script = LATEST
    held: dict[str, Stamp]

    @override
    def add(self, items: list[Rendered]) -> None:
        held = self.held
        get = held.get
        for key, stamp, _ in items:
            old = get(key)
            if old is None or stamp > old:
                held[key] = stamp

    @override
    def value(self, held: Stamp) -> bytes:
        return ordered_bytes(held)

    @override
    def commands(self, path: str, generation: str, token: str, room: int, read: Read) -> Iterator[Command]:
        prefix = contract.generation_prefix(path, generation)
        head = contract.HOLDER, contract.info_key(path, generation)
        for call in script_calls(self.values()):
            yield (
                *("EVAL", self.script, 2 + len(call), *head),
                *(prefix + key for key, _ in call),
                *(token, max(0, room)),
                *(value for _, value in call),
            )
            room -= sum([len(value) + len(key) + len(prefix) + contract.ENTRY_BYTES for key, value in call])


class NewestOfEach(Reducer):
    """With `each`: key -> {JSON of the `each` values -> the newest record}."""

    held: dict[str, dict[bytes, Stamp]]

    def __init__(self, view: Latest, renderer: Renderer) -> None:
        super().__init__()
        self.part = renderer.part
        self.each = [renderer.at[name] for name in view.each]

    @override
    def add(self, items: list[Rendered]) -> None:
        part = self.part
        for key, stamp, row in items:
            held = self.held.setdefault(key, {})
            field = part(row, self.each)
            old = held.get(field)
            if old is None or stamp > old:
                held[field] = stamp
                if len(held) > 2 * MAX_EACH:
                    self.held[key] = served_fields(held)

    @override
    def value(self, held: dict[bytes, Stamp]) -> dict[bytes, bytes]:
        return served_fields({field: ordered_bytes(stamp) for field, stamp in held.items()})

    @override
    def commands(self, path: str, generation: str, token: str, room: int, read: Read) -> Iterator[Command]:
        prefix = contract.generation_prefix(path, generation)
        head = contract.HOLDER, contract.info_key(path, generation)
        cut = ((key, dict(call)) for key, fields in self.values() for call in script_calls(iter(fields.items())))
        for call in script_calls(cut, len):
            arguments: list[Any] = [token, max(0, room)]
            for _, fields in call:
                arguments.append(len(fields))
                for pair in fields.items():
                    arguments += pair
                    room -= len(pair[0]) + len(pair[1]) + 2 * contract.ENTRY_BYTES
            yield ("EVAL", EACH, 2 + len(call), *head, *(prefix + key for key, _ in call), *arguments)


def ordered_bytes(stamp: Stamp) -> bytes:
    """ORDER_BYTES and the JSON."""
    time, number, document = stamp
    return b"%020d%020d%b" % (time + (1 << 63), number, document)
