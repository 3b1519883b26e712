"""Which functions of Sluice a worker calls for one plain vote, from its claim to its row, in the order of their calls.

.venv/bin/python -m proving.trace_vote          the functions, and their number and that of their files
.venv/bin/python -m proving.trace_vote --key    of a position, which has a key
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import worker
from proving import harness
from sluice import settings
from sluice.spool.inlet import Inlet
from sluice.spool.outlet import Outlet
from sluice.streams.built_in import load_streams
from sluice.streams.registry import body_limits

ROOT = Path(__file__).resolve().parents[1]
VOTE = "votes", b'{"poll":"cookies","choice":"oreo"}'
FIX = "gps", b'{"device":"bus","lat":48.1,"lon":11.5,"time":1767268800}'


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--key"]):
        print(__doc__)
        return 2
    stream, body = FIX if arguments else VOTE
    config = settings.load_settings({})
    calls: dict[tuple[str, str], int] = {}

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        file = Path(code.co_filename)
        if event == "call" and file.is_relative_to(ROOT) and ".venv" not in file.parts and code.co_name[0] != "<":
            name = str(file.relative_to(ROOT)), code.co_qualname if hasattr(code, "co_qualname") else code.co_name
            calls[name] = calls.get(name, 0) + 1

    with harness.short_tmp() as tmp, harness.redis_server(tmp, appendfsync="no") as redis:
        outlet = Outlet(str(redis.socket))
        ours = worker.Worker(outlet, f"sqlite:///{tmp}/ingest.db", load_streams(config), body_limits(config))
        (state,) = [state for state in ours.states if state.stream.name == stream]
        inlet = Inlet(str(redis.socket))

        def store() -> None:
            inlet.commit(inlet.append(stream, body))
            ours.step(state)

        for _ in range(17):  # the tables are there, and one of the bodies was timed
            store()
        inlet.commit(inlet.append(stream, body.replace(b"8.1", b"8.2")))
        sys.setprofile(note)
        try:
            ours.step(state)
        finally:
            sys.setprofile(None)
        ours.release()
    for (file, name), count in calls.items():
        print(f"{file:40} {name}{f' ×{count}' if count > 1 else ''}")
    print(f"{len({file for file, _ in calls})} files, {len(calls)} functions")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
