"""The report of a drill: what a client saw in each fault, what the views answered, and all of it as Markdown."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from typing import Any

from proving.answers import KINDS as WRONG
from proving.compare import LISTED, outcome
from proving.faults import FAULTS
from proving.load import REST, UNANSWERED, Book
from proving.outages import STATES
from proving.read import Reads

SHOWN = 100  # event numbers of each kind in the Markdown report


SHOWN_WRONG = 20  # wrong answers in it


KINDS = {
    "missing": "acknowledged, not stored",
    "doubled": "stored twice",
    "torn": "stored, but never sent completely",
    "disorder": "stored behind an event that was posted after its response",
    "misdated": "received_at more than 100 ms before the request or after the response (plus 2 ms for rounding)",
    "unknown": "stored, not acknowledged (allowed)",
    "aged": "acknowledged, deleted by age (allowed)",
    "away": "acknowledged, stored after the copy that was restored (allowed)",
}


# of the table of faults: of an installation, of cells
COLUMNS = (
    {"lasted": "duration s", "back_after": "acknowledged again after s", "read_after": "read again after s"},
    {
        "lasted": "duration s",
        "mended_after": "whole again after s",
        "without_meanwhile": "a client without 2xx s",
        "without": "until the next fault s",
    },
)


SERVICE = {"dead": "with a cell dead", "frozen or cut off": "with one frozen or cut off", "alive": "otherwise"}


def without_service(books: list[Book], faults: list[dict[str, Any]], begun: float) -> dict[str, dict[str, Any]]:
    """For each kind of fault, what a cell is meanwhile, how often it was injected, and the longest time in which a
    client that retries got no 2xx, from the request or the fault on: of those that began while it lasted
    ("meanwhile"), and of all until the next fault ("longest"); "none": before the first one. Each fault gets its own
    times, too.
    """
    starts = [0.0, *(entry["at"] for entry in faults), math.inf]
    ends = [math.inf, *(entry["at"] + entry.get("lasted", math.inf) for entry in faults)]
    longest = [0.0] * (len(faults) + 1)
    meanwhile = [0.0] * (len(faults) + 1)
    for book in books:
        for down, up in zip(book.down, book.up, strict=True):
            for at in range(bisect_right(starts, down - begun) - 1, bisect_right(starts, up - begun)):
                seconds = min(up - begun, starts[at + 1]) - max(down - begun, starts[at])
                longest[at] = max(longest[at], seconds)
                if down - begun < ends[at]:
                    meanwhile[at] = max(meanwhile[at], seconds)
    first = {"cell": "alive", "times": 1, "meanwhile": round(meanwhile[0], 3), "longest": round(longest[0], 3)}
    kinds: dict[str, dict[str, Any]] = {"none": first}
    for entry, *seconds in zip(faults, meanwhile[1:], longest[1:], strict=True):
        entry["without_meanwhile"], entry["without"] = (round(each, 3) for each in seconds)
        kind = kinds.setdefault(
            entry["fault"],
            {"cell": STATES.get(entry["fault"], "alive"), "times": 0, "meanwhile": 0.0, "longest": 0.0},
        )
        kind["times"] += 1
        kind["meanwhile"] = max(kind["meanwhile"], entry["without_meanwhile"])
        kind["longest"] = max(kind["longest"], entry["without"])
    return kinds


def posted_on(counts: dict[str, int]) -> list[str]:
    """The part of the Markdown about what was posted on."""
    return ["| posted on | |", "|---|---|", *(f"| {name} | {count:,} |" for name, count in counts.items()), ""]


def judged(
    reads: Reads, faults: list[dict[str, Any]], begun: float, different: dict[str, int], served: float = 0.0
) -> dict[str, Any]:
    """The part of the report about the views. begun: the drill, by time.monotonic(). served: seconds from then on until
    all of them were first built; until then 503 is the answer.
    """
    spans = []
    for entry in faults:
        fault = FAULTS[entry["fault"]]
        reads_too = fault.views or fault.cuts
        over = entry["at"] + entry.get("lasted", math.inf)
        spans.append((entry["at"], over + entry.get("read_after" if reads_too else "back_after", math.inf), fault.cuts))
        spans.append((entry["at"], over + entry.get("served_after", math.inf if reads_too else 0.0), False))

    def during(begin: float, end: float, cuts: bool = False) -> bool:
        """Whether a fault (that cuts reads) meets a time span."""
        return any(begin < last and end > first and (cut or not cuts) for first, last, cut in spans)

    wrong = [(at - begun, path, kind, words) for at, path, kind, words in reads.wrong]
    unavailable, unbuilt = Counter[str](), 0
    for begin, end, path, status in reads.odd:
        begin, end = begin - begun, end - begun
        if status == 503 and begin < served:
            unbuilt += 1
        elif status == 503:
            unavailable[path] += not during(begin, end)
        elif status not in (UNANSWERED, 502, 504) or not during(begin, end, cuts=True):
            wrong.append((begin, path, "status", outcome(status)))
    every = sorted(seconds for _, seconds in reads.fresh)
    calm = sorted(seconds for at, seconds in reads.fresh if not during(at - begun, at - begun + seconds))
    return {
        "different": different,
        "reads": sum(reads.statuses.values()),
        "answers": {outcome(int(status)): count for status, count in reads.statuses.most_common()},
        "unavailable_without_a_fault": dict(+unavailable),
        "first_built_after": served,
        "unavailable_until_then": unbuilt,
        "wrong": dict(Counter(kind for _, _, kind, _ in wrong)),
        "examples": sorted(wrong)[:LISTED],
        "read_after_acknowledgement": {"without a fault": percentiles(calm), "overall": percentiles(every)},
        "never_read": reads.unread,
    }


def percentiles(ordered: list[float]) -> dict[str, float]:
    """The number of seconds in an ordered list, and their percentiles."""
    if not ordered:
        return {"values": 0}
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    found = {name: round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 4) for name, part in at.items()}
    return {"values": len(ordered), **found}


def markdown(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    s = report["settings"]
    columns = COLUMNS["cells" in report]
    lines = [
        f"# Drill {report['run']}: {'passed' if report['passed'] else 'FAILED'}"
        + (f", interrupted after {report['seconds']} s" if report["interrupted"] else ""),
        "",
        f"{report['ended']}, {described_site(report)}, {report['machine']}, {s['runtime']}, "
        f"{s['gateways']} gateway process(es), {s['workers']} worker(s), durability {s['durability']}, {s['store']}. "
        f"Seed {report['seed']}, {report['clients']} clients, {report['rate']:,} events/s "
        f"for {report['seconds']} s, {len(report['faults'])} faults.",
        "",
        *([f"**{report['trouble']}**", ""] if report["trouble"] else []),
        "| | events |",
        "|---|---|",
        f"| posted | {report['posted']:,} ({report['posted'] / max(report['seconds'], 1):,.0f}/s) |",
        f"| sent more than once, with the same key | {report['again']:,} |",
        f"| acknowledged | {report['acknowledged']:,} ({report['acknowledged'] / max(report['seconds'], 1):,.0f}/s) |",
        f"| stored | {report['stored']:,} |",
        f"| in dead_letters | {report['dead']:,} |",
        *(f"| {KINDS[kind]} | {count:,} |" for kind, count in report["counts"].items()),
        f"| missing according to the ledger | {report['ledger']['missing']:,} |",
        f"| stored after the copy that was restored | {report['ledger']['restored_away']:,} |",
        "",
        f"Responses: {', '.join(f'{name}: {count:,}' for name, count in report['answers'].items())}. "
        f"received_at was at most {report['received_at']['early'] * 1000:.0f} ms before the request and "
        f"{report['received_at']['late'] * 1000:.0f} ms after the response. The backlog was drained "
        f"{report['drained_after']} s after the last response; a new event was "
        + (f"then stored within {report['fresh_after']} s." if report["fresh_after"] else "not stored."),
        "",
        *(described(report["views"]) if report["views"] else ()),
        *(posted_on(report["forwarded"]) if report.get("forwarded") else ()),
        *(described_service(report) if "cells" in report else ()),
        f"| at s | fault | details | {' | '.join(columns.values())} |",
        "|---|---|---|" + "---|" * len(columns),
        *(f"| {x['at']:.1f} | {x['fault']} | {x['what']} | "
          + " | ".join(f"{x[name]:.1f}" if name in x else "" for name in columns)
          + " |" for x in report["faults"]),
    ]  # fmt: skip
    if report["views"]:
        for at, path, kind, words in report["views"]["examples"][:SHOWN_WRONG]:
            lines += ["", f"Wrong answer at {at:.1f} s, {path}: {WRONG[kind]}: {words}"]
    for kind, numbers in report["numbers"].items():
        if numbers:
            more = " … (more in the JSON report)" if report["counts"][kind] > SHOWN else ""
            lines += ["", f"Event numbers, {KINDS[kind]}: {', '.join(map(str, numbers[:SHOWN]))}{more}"]
    return "\n".join(lines) + "\n"


def described_site(report: dict[str, Any]) -> str:
    """What was drilled."""
    if "cells" in report:
        return f"{report['cells']} cells with {report['spool']}, on one machine's namespaces"
    return f"{report['installation']} installation"


def described_service(report: dict[str, Any]) -> list[str]:
    """What the clients of cells saw, in the Markdown report."""
    kinds = report["without_service"]
    longest: dict[str, float] = {}
    for kind in kinds.values():
        longest[kind["cell"]] = max(kind["meanwhile"], longest.get(kind["cell"], 0.0))
    return [
        f"A client waits {report['patience']:g} s for a response, and {REST:g} s before it posts again. "
        f"Connections that the balancer refused: {report['refused']:,}. "
        "Longest time in which a client got no 2xx, from its request or the fault on: "
        + ", ".join(f"{longest[cell]:.2f} s {words}" for cell, words in SERVICE.items() if cell in longest)
        + ".",
        "",
        "| a cell is | fault | times | longest s while it lasted | until the next fault |",
        "|---|---|---|---|---|",
        *(f"| {kind['cell']} | {name} | {kind['times']:,} | {kind['meanwhile']:.2f} | {kind['longest']:.2f} |"
          for name, kind in sorted(kinds.items(), key=lambda one: (one[1]["cell"], one[0]))),
        "",
    ]  # fmt: skip


def described(found: dict[str, Any]) -> list[str]:
    """The views in the Markdown report."""
    different = found["different"] or {"not compared": ""}
    fresh = found["read_after_acknowledgement"]
    return [
        "| view | keys that differ from the database |",
        "|---|---|",
        *(f"| {path} | {count} |" for path, count in different.items()),
        "",
        f"Reads: {', '.join(f'{name}: {count:,}' for name, count in found['answers'].items())}. "
        f"503 until all views were first built, {found['first_built_after']:.1f} s after the start: "
        f"{found['unavailable_until_then']:,}. 503 without a fault: "
        + (", ".join(f"{path}: {count:,}" for path, count in found["unavailable_without_a_fault"].items()) or "0")
        + ". Wrong answers: "
        + (", ".join(f"{count:,} ({WRONG[kind]})" for kind, count in found["wrong"].items()) or "0")
        + f". Acknowledged values that were never read: {found['never_read']}.",
        "",
        "| from 2xx until the value was read | values | p50 s | p99 s | max s |",
        "|---|---|---|---|---|",
        *(f"| {when} | {x['values']:,} | {x.get('p50', '')} | {x.get('p99', '')} | {x.get('max', '')} |"
          for when, x in fresh.items()),
        "",
    ]  # fmt: skip
