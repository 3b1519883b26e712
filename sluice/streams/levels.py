"""The level of a log line, under the names that log libraries have for it."""

from __future__ import annotations

# The levels are those of OpenTelemetry. Each has the names and numbers that mean the same elsewhere: of syslog (0 to
# 7), of pino and Bunyan (10 to 60), of Java's and Python's libraries, and of Serilog
LEVELS = {
    name: level
    for level, names in {
        "trace": "trace verbose finest finer silly 10",
        "debug": "debug fine 7 20",
        "info": "info information informational notice 5 6 30",
        "warn": "warn warning 4 40",
        "error": "error err severe 3 50",
        "fatal": "fatal critical crit alert emerg emergency panic 0 1 2 60",
    }.items()
    for name in names.split()
}


def level(sent: object) -> tuple[str | None, object]:
    """The level that is stored for a level as it was sent, and the latter if it is not the same text in another case.

    A text or an integer that is not in LEVELS is stored as it was sent, in lower case.
    """
    if not isinstance(sent, str | int) or isinstance(sent, bool):
        return None, sent
    text = str(sent).strip().lower()
    stored = LEVELS.get(text, text)
    return stored or None, sent if stored != text or isinstance(sent, int) else None
