"""The file of INGEST_HOOKS: what its lines say, and that an error names file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice import settings
from sluice.contrib.hooks.config import Hooks, load
from sluice.http.routes import NO_CONTENT
from sluice.settings import SettingError
from support.folders import needs


def hooks_of(tmp_path: Path, text: str, mode: int = 0o600) -> Hooks:
    file = tmp_path / "hooks"
    file.touch(mode)
    file.write_text(text)
    return load(settings.load_settings({"INGEST_HOOKS": str(file)}))


def test_without_a_file_each_name_is_taken_unchecked() -> None:
    hook = load(settings.load_settings({})).find("any")
    assert (hook.scheme, hook.size, hook.answer, hook.within, hook.refused) == (None, 0, None, 0, False)
    assert {"slack", "meta", "strava", "microsoft", "eventgrid"} <= hook.challenges
    assert not {"zoom", "discord", "vercel"} & hook.challenges


@needs("access")
def test_each_word_of_a_line_says_something(tmp_path: Path) -> None:
    found = hooks_of(
        tmp_path,
        "# ours\n\ngithub\tscheme=github  secret=a#b secret=c size=25m answer=204\n"
        "alerts by content within 5m answer=202:taken order=none\n"
        "meta verify=v\nsms scheme=twilio secret=t url=https://a.example answer=200:<Response/>\n"
        "chat scheme=slack secret=s challenge=none\n* refused\n",
    )
    github, alerts, sms = (found.find(name) for name in ("github", "alerts", "sms"))
    assert (github.keys, github.size, github.answer) == ((b"a#b", b"c"), 25 << 20, NO_CONTENT)
    assert (alerts.within, alerts.answer and alerts.answer.chunks) == (300, (b"taken",))
    assert (github.order, alerts.order) == (b"", b"none")
    assert sms.url == "https://a.example" and sms.answer and ("Content-Type", "text/xml") in sms.answer.headers
    assert (found.find("meta").challenges, found.find("meta").verify) == ({"meta"}, "v")
    assert found.find("chat").challenges == github.challenges == frozenset()
    assert found.find("other").refused and not github.refused


@needs("access")
@pytest.mark.parametrize(
    "line, problem",
    [
        ("a/b size=1m", "begins with no name of letters, digits and . _ ~ -"),
        ("a colour=red", "has the word colour; there are scheme=, secret=, field=, parameter=, url=, size=, answer=, "
                         "challenge=, verify=, order=, refused, and by content within 5m"),
        ("a scheme=md5 secret=x", "has the scheme md5; there are "),
        ("a scheme=github", "has scheme= without secret="),
        ("a secret=x", "has secret= without scheme="),
        ("a scheme=standard secret=whsec_!", "has a secret that is none of standard"),
        ("a scheme=github secret=x field=Y", "has a place for a signature; github has one of its own"),
        ("a scheme=hmac secret=x parameter=y", "has parameter=, which is for scheme=token"),
        ("a size=25x", "has an invalid size=: expected a size from "),
        ("a answer=500", "has an answer= that is no STATUS or STATUS:TEXT with a status from 200 to 204"),
        ("a challenge=y", "has the challenge y; there are none, "),
        ("a url=a.example", "has a url= that is no https://HOST"),
        ("a order=path", "has the order path; there are hook, none"),
        ("a by content within 2d", "has a content that is the same for more than a day"),
        ("a size=1m size=2m", "has size= twice"),
        ("* scheme=github secret=x", "is of all other names; it can have answer, challenge, order, size and "
                                     "refused only"),
        ("b", "is a second one of b"),
    ],
)  # fmt: skip
def test_an_error_names_file_and_line_and_no_secret(line: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError) as error:
        hooks_of(tmp_path, f"# first\nb\n{line}\n")
    text = str(error.value)
    assert text.startswith(f"INGEST_HOOKS: line 3 of {tmp_path}/hooks {problem}")
    assert "secret=x" not in text and "!" not in text


def test_a_file_that_everybody_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="chmod 600"):
        hooks_of(tmp_path, "a\n", 0o644)
