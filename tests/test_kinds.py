"""What keeps out each kind of fault that a review has found: the room with its rule, and the tests of it.

`LINTS` are those that read the code. Each knows the places where what it looks for is right, and why; another place, or
one that is gone, is a failure. Each also has to find a snippet that is wrong.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import pytest

from proving.harness import ROOT
from sluice.contrib.postgres.copies import BOOKS
from test_lint import sources

Places = Iterator[str]


def named(node: ast.AST) -> str:
    """The last name of an expression: `a.b.c` and `a.b.c()` are c."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def functions(module: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef))


def texts(node: ast.AST) -> Iterator[str]:
    """The strings of a piece of code; what an f-string fills in stands in braces."""
    parts: set[int] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.JoinedStr):
            parts |= {id(part) for part in each.values}
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
                for part in each.values
                if isinstance(part, ast.Constant | ast.FormattedValue)
            )
        elif isinstance(each, ast.Constant) and isinstance(each.value, str | bytes) and id(each) not in parts:
            yield each.value if isinstance(each.value, str) else each.value.decode("latin-1")


MAINTENANCE = {"fold", "expire", "expire_rows", "expire_letters", "expire_keys", "make_ahead", "tidy", "count_and_drop"}


def maintenance(module: ast.Module) -> Places:
    """Calls of what folds, deletes, merges or makes partitions."""
    for function in functions(module):
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and named(node) in MAINTENANCE - {function.name}:
                yield f"{function.name}: {named(node)}"


def numbers_alone(module: ast.Module) -> Places:
    """SQL that chooses bodies by their numbers, and not by the epoch of these."""
    for function in functions(module):
        for text in texts(function):
            where = re.split("ORDER BY|RETURNING", text.partition("WHERE")[2])[0]
            if "batches_ranges" in text and re.search(r"\b(first|last)\b", where) and "epoch" not in where:
                yield function.name


def caches(module: ast.Module) -> Places:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and any(
            named(each) in ("cache", "lru_cache") for each in node.decorator_list
        ):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            made = node.value.func if isinstance(node.value.func, ast.Call) else node.value
            if named(made) in ("cache", "lru_cache"):
                yield ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])


def growing(module: ast.Module) -> Places:
    """Attributes that are collections."""
    for node in ast.walk(module):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            empty = isinstance(node.value, ast.Dict | ast.List | ast.Set) and not ast.unparse(node.value).strip("{}[]")
            made = isinstance(node.value, ast.Call) and named(node.value) in (
                "set",
                "deque",
                "defaultdict",
                "OrderedDict",
            )
            if isinstance(target, ast.Attribute) and (empty or made):
                yield target.attr


def numbers_as_text(module: ast.Module) -> Places:
    """Numbers that are filled up with zeros, and orders of what became text."""
    for text in texts(module):
        yield from re.findall(r"%0\d+d|:0\d+d?\}|lpad\(.*|ORDER BY [^;]*::text[^;]*", text)


def targets(module: ast.Module) -> Places:
    """Forms of a request's target other than the path that chose its route."""
    for node in ast.walk(module):
        if isinstance(node, ast.Name) and node.id in ("unquote", "urlsplit", "urlparse"):
            yield node.id
        elif isinstance(node, ast.Constant) and node.value in ("RAW_URI", "REQUEST_URI", "SCRIPT_NAME"):
            yield str(node.value)


def tables(module: ast.Module) -> Places:
    """Tables that are made by name, and that a restore does not know."""
    for text in texts(module):
        for name in re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(?!IF )(\w+)", text):
            if name not in BOOKS:
                yield name


def waits_for_redis(module: ast.Module) -> Places:
    """Methods that take the turn, which a lost reply occupies, and ask Redis although it is away."""
    for function in functions(module):
        takes = any(ast.unparse(node) == "self.turn" for node in ast.walk(function) if isinstance(node, ast.Attribute))
        asks = {"redis", "push", "probe", "read_mark", "is_full"}
        does = {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
        if takes and function.name != "__init__" and does & asks and "away" not in does:
            yield function.name


def endless_destinations(module: ast.Module) -> Places:
    """Destinations that know no row which they will never take."""
    for node in ast.walk(module):
        bases = {named(base) for base in node.bases} if isinstance(node, ast.ClassDef) else set()
        if bases & {"Destination", "Carried"} and not any(named(each) == "Rejected" for each in ast.walk(module)):
            assert isinstance(node, ast.ClassDef)
            yield node.name


def identities(module: ast.Module) -> Places:
    """What a client says of itself, and what a path leads to."""
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and node.value in ("REMOTE_ADDR", "HTTP_HOST", "HTTP_X_FORWARDED_FOR"):
            yield str(node.value)
        elif (
            isinstance(node, ast.Attribute)
            and node.attr in ("stat", "readlink", "lstat")
            and "path" in ast.unparse(node)
        ):
            yield node.attr


class Lint(NamedTuple):
    """find: what is to be looked at. rooms: where. wrong: code that it must find. right: the known places, and why."""

    find: Callable[[ast.Module], Places]
    rooms: tuple[str, ...]
    wrong: str
    right: dict[str, str]


# gateway and reader, and what they import
STRANGERS = (
    *("ingest.py", "serve.py", "sluice/http/", "sluice/fastlane/", "sluice/base/counters.py", "sluice/spool/inlet.py"),
    *(
        "sluice/spool/backlog.py",
        "sluice/contrib/kafka/inlet.py",
        "sluice/contrib/kafka/lane.py",
        "sluice/contrib/views/re",
    ),
    *("sluice/contrib/kafka/backlog.py", "sluice/contrib/page/rejections.py"),
)

MAINTAINED = {
    "worker.py: chores: fold": "a chore",
    **dict.fromkeys(
        [f"sluice/store/expiry.py: delete: {name}" for name in ("expire", "expire_keys", "expire_letters")], "a chore"
    ),
    "sluice/store/store.py: expire: expire_rows": "of a chore, or of a verb",
    "sluice/store/store.py: overdue: expire": "of a verb, which only counts",
    "sluice/contrib/postgres/store.py: expire_rows: make_ahead": "of a chore",
    "sluice/contrib/postgres/store.py: create: make_ahead": "of a table that is made, which nobody reads yet",
    "sluice/contrib/postgres/store.py: drop: count_and_drop": "in a thread",
}
CACHES = {
    "sluice/base/connect.py: sentinels": "a setting",
    "sluice/base/times.py: instant": "numbers",
    "sluice/base/times.py: second": "numbers",
    "sluice/fastlane/loop.py: end_forked_process_on_term": "nothing",
    "sluice/contrib/formats/otlp_json.py: converters": "types",
    "sluice/contrib/formats/owntracks.py: user": "one head",
    "sluice/http/replies.py: encoded_status": "our own texts",
    "sluice/http/replies.py: too_large": "one number",
    "sluice/http/replies.py: unavailable": "our own texts, and seconds",
    "sluice/http/written.py: unknown": "our own texts",
    "sluice/http/written.py: written": "three numbers below 20,000",
    "sluice/contrib/postgres/store.py: placeholders": "our own SQL",
    "sluice/streams/decoder.py: load": "names in our own tables",
    "sluice/streams/message.py: beginning": "names in our own tables",
    "sluice/streams/message.py: lowered": "one head",
    "sluice/streams/message.py: parameter": "queries that are shorter than a head",
    "sluice/contrib/views/rows/source.py: cached": "CACHED_BYTES",
    "sluice/contrib/views/rows/sqlite.py: since_1970": "20 characters",
}
BOUNDS = {
    "sluice/base/counters.py": {"counters": "our own names", "histograms": "our own names"},
    "sluice/http/endpoints.py": {"plain": "routes", "rpc": "routes"},
    "sluice/contrib/page/rejections.py": {"kinds": "KINDS, and KEPT of each"},
    "sluice/fastlane/answers.py": {"rendered": "MAX_RENDERED"},
    "sluice/fastlane/grammar.py": {"known": "CACHED_HEADS"},
    "sluice/fastlane/connection.py": {"pieces": "bytes that were admitted"},
    "sluice/fastlane/slow.py": {"pieces": "bytes that were admitted"},
    "sluice/fastlane/loop.py": {
        "connections": "worker_connections", "declined": "connections", "waiting": "connections",
        "pending": "one of each connection", "pieces": "bytes that were admitted", "listeners": "settings",
        "slow_readers": "connections",
    },
    "sluice/spool/inlet.py": {
        "items": "bytes that were admitted", "backlogs": "streams", "refused": "streams", "refusing": "streams, checks",
    },
    "sluice/contrib/kafka/backlog.py": {"busy": "partitions", "failed": "partitions"},
    "sluice/contrib/kafka/inlet.py": {
        "failed": "topics", "heard": "brokers", "lost": "brokers", "parts": "partitions",
        "senders": "commits in flight",
    },
    "sluice/contrib/kafka/lane.py": {"held": "connections"},
    "sluice/contrib/views/reads.py": {
        **dict.fromkeys(("commands", "strings"), "TRIP_KEYS"),
        **dict.fromkeys(("asks", "states"), "the reads that wait at this moment"),
        "asked": "the keys of a second", "wanted": "WANTED_KEYS",
    },
    "sluice/contrib/views/refresh.py": {
        "counting": "threads", "failed": "FAILING_KEYS", "index_at": "tallies", "spent": "tallies",
    },
}  # fmt: skip
ORDERED = {
    "sluice/base/daemon.py: %03d": "milliseconds of a time that is shown",
    "sluice/spool/contract.py: %06d": "microseconds, which are never negative",
    "sluice/contrib/postgres/copies.py: ORDER BY array_position(%(books)s, relname::text), relname": "names",
    "sluice/contrib/postgres/tables.py: lpad(({number})::text, 19, '0')": "numbers of bodies, from 1 on",
    "sluice/contrib/views/kinds/latest.py: %020d": "64 bits, moved so that none is negative",
    'sluice/contrib/postgres/view_rows.py: ORDER BY n DESC, value::text COLLATE "C" LIMIT {source.MAX_GROUPS}': "texts",
}
TARGETS = {
    "sluice/fastlane/grammar.py: RAW_URI": "for applications of others; ours do not look at it",
    "sluice/fastlane/grammar.py: SCRIPT_NAME": "of a request with it gunicorn decides",
    "sluice/fastlane/loop.py: SCRIPT_NAME": "the same",
}
IDENTITIES = {
    "sluice/contrib/destinations/parquet.py: stat": "how old and how large our own files are",
    "sluice/fastlane/grammar.py: HTTP_HOST": "a field with two values is declined; nginx checks names",
    "sluice/fastlane/grammar.py: REMOTE_ADDR": "for applications of others; nginx checks addresses",
    "sluice/run/up.py: lstat": "the owner of a link counts, too",
    "sluice/run/up.py: stat": "owners and modes of a home",
}

LINTS: dict[str, Lint] = {
    "no body waits for maintenance": Lint(
        maintenance, ("",), "def persist(self): self.expire_rows('votes', 0)", MAINTAINED
    ),
    "a number is compared with its epoch": Lint(
        numbers_alone, ("",), "def f(db): db.run('SELECT 1 FROM batches_ranges WHERE stream = ? AND first <= ?')", {}
    ),
    "what is kept has a bound in bytes": Lint(caches, ("",), "@lru_cache(maxsize=4096)\ndef f(text): ...", CACHES),
    "what strangers name has a bound": Lint(
        growing, STRANGERS, "def f(self): self.seen: set[str] = set()",
        {f"{name}: {what}": why for name, known in BOUNDS.items() for what, why in known.items()},
    ),
    "a number is no text": Lint(numbers_as_text, ("",), "key = '%020d' % time", ORDERED),
    "a path is derived once": Lint(
        targets, ("ingest.py", "serve.py", "sluice/http/", "sluice/fastlane/", "sluice/contrib/formats/", "sluice/streams/"),
        "path = unquote(environ['RAW_URI'])", TARGETS,
    ),
    "a restore knows every table": Lint(tables, ("sluice/store/",), "db.execute('CREATE TABLE notes (id int)')", {}),
    "a Redis that is away is not waited for": Lint(
        waits_for_redis, ("sluice/spool/inlet.py",), "def f(self):\n with self.turn: self.redis.send()",
        {"sluice/spool/inlet.py: commit": "`push` looks"},
    ),
    "what can never be stored is known as such": Lint(
        endless_destinations, ("sluice/contrib/destinations/",), "class Far(Destination): ...",
        {
            "sluice/contrib/destinations/destination.py: Carried": "the interface",
            "sluice/contrib/destinations/parquet.py: Parquet": "rows that do not fit are rejected when its file is written",
            "sluice/contrib/destinations/statsd.py: Statsd": "it answers nothing, so nothing waits",
        },
    ),
    "no address, name or link is an identity": Lint(identities, ("",), "who = environ['REMOTE_ADDR']", IDENTITIES),
}  # fmt: skip

# kind -> the file with its rule, the words of that rule, and the tests that keep the kind out. Of what needs an
# installation, those tests start one.
KINDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "work that waits without an address, or can never be done": (
        "sluice/contrib/destinations/outbox.py", "What waits names its destination.",
        ("the_code_follows_the_rule", "rows_that_wait_stay_for_their_destination",
         "what_waits_is_in_each_list_of_figures",
         "an_object_without_rows_or_of_another_kind_holds_up_its_stream_for_a_while"),
    ),
    "a number without its generation": (
        "sluice/spool/contract.py", "A number names a body only together with its epoch.",
        ("the_code_follows_the_rule", "bodies_with_the_offsets_of_lost_ones_are_stored",
         "after_a_flushall_the_store_ignores_no_new_body",
         "a_topic_that_was_made_again_is_a_new_spool"),
    ),
    "one item that stops a loop": (
        "worker.py", "No body holds up the others.",
        ("every_background_loop_goes_on_after_any_exception", "a_loop_goes_on_after_an_item_that_raises",
         "a_body_that_ends_every_worker_is_buried_and_the_others_are_stored"),
    ),
    "maintenance on the path of a body": (
        "sluice/store/__init__.py", "No body waits for maintenance:", ("the_code_follows_the_rule",),
    ),
    "a session with the settings of others": (
        "sluice/contrib/postgres/session.py", "So each transaction first sets",
        ("every_transaction_first_sets_what_our_sql_depends_on", "no_setting_of_a_role_changes_what_is_stored"),
    ),
    "a wait of each request instead of one for all": (
        "sluice/spool/inlet.py", "A client waits for one reply at most.",
        ("the_code_follows_the_rule", "a_redis_that_hangs_delays_each_request_by_one_timeout_at_most"),
    ),
    "a bound in items where bytes or seconds cost": (
        "sluice/store/bounds.py", "A bound is one of what costs, bytes or seconds;",
        ("the_code_follows_the_rule", "a_body_becomes_a_small_multiple_of_itself"),
    ),
    "one fact that is derived twice": (
        "sluice/http/request.py", "no other form of the target is looked at",
        ("the_code_follows_the_rule", "the_kept_path_is_the_one_that_chose_the_route_however_it_is_written"),
    ),
    "a wall clock that is trusted": (
        "sluice/base/times.py", "A wall clock is read for times that are shown or stored.",
        ("wall_clocks_are_only_where_they_are_known", "a_clock_that_jumps_ahead_deletes_nothing_that_is_kept",
         "every_promise_holds_after_each_step_of_the_clock_of_all_processes"),
    ),
    "state without a quota that strangers name": (
        "sluice/contrib/views/contract.py", "What clients can name has a bound,",
        ("the_code_follows_the_rule", "the_counts_that_are_kept_have_a_bound",
         "a_limit_holds_and_other_clients_are_served"),
    ),
    "a number that is compared as text": (
        "sluice/contrib/views/kinds/latest.py", "sort as time and sequence number do", ("the_code_follows_the_rule",),
    ),
    "state that is replaced in part": (
        "sluice/store/copies.py", "all that is ours and nothing of others",
        ("the_code_follows_the_rule", "a_restore_takes_all_that_is_ours_back_and_nothing_of_others"),
    ),
    "a body that becomes a multiple of itself": (
        "sluice/streams/body.py", "All decoders charge it by the same rule",
        ("a_body_becomes_a_small_multiple_of_itself", "each_stream_and_each_format_has_a_body_here",
         "posts_are_refused_while_redis_can_still_write_and_accepted_once_there_is_room"),
    ),
    "time that is not linear in the body": (
        "sluice/streams/body.py", "Each takes time in proportion to the body",
        ("every_pattern_takes_linear_time", "twice_the_body_takes_at_most_twice_the_calls"),
    ),
    "an address, a name or a link that is taken for an identity": (
        "sluice/run/up.py", "What Sluice writes there follows links",
        ("the_code_follows_the_rule", "every_location_refuses_pages_of_other_sites_or_names_of_strangers",
         "links_in_a_home_that_another_user_prepared_are_not_followed", "nothing_but_nginx_listens_on_the_network"),
    ),
}  # fmt: skip


every_source = cache(lambda: list(sources()))


def places(lint: Lint) -> set[str]:
    return {
        f"{name}: {what}"
        for name, module in every_source()
        if name.startswith(lint.rooms)
        for what in lint.find(module)
    }


@pytest.mark.parametrize("rule", LINTS)
def test_the_code_follows_the_rule(rule: str) -> None:
    assert places(LINTS[rule]) == LINTS[rule].right.keys()


@pytest.mark.parametrize("rule", LINTS)
def test_code_that_breaks_the_rule_is_found(rule: str) -> None:
    assert list(LINTS[rule].find(ast.parse(LINTS[rule].wrong)))


def test_each_kind_has_its_rule_in_a_docstring_and_its_tests() -> None:
    written = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def test_(\w+)", path.read_text())
    }
    for kind, (place, words, tests) in KINDS.items():
        module = ast.parse((ROOT / place).read_text())
        rooms = [node for node in ast.walk(module) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
        said = " ".join(" ".join(filter(None, map(ast.get_docstring, rooms))).split())
        assert words in said, kind
        assert set(tests) <= written, kind


def test_what_waits_is_in_each_list_of_figures() -> None:
    for place in "ledger.py", "ops/status.py", "run/page.py", "run/exporter.py":  # `top` shows the ledger's words
        shown = (ROOT / "sluice" / place).read_text()
        for figure in "unpublished", "claimed", "dead":
            assert re.search(rf"\b{figure}\b|\bSTATES\b", shown), (place, figure)
