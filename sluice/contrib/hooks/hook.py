"""The stream `hooks`: a request at /hooks/NAME is one row, whatever its body is.

    POST /hooks/github HTTP/1.1                    hook   github
    X-GitHub-Event: push                           event  push
    X-GitHub-Delivery: 72d3162e-…                  id     72d3162e-…
    Content-Type: application/json                 head   {"x-github-event": "push", …}
                                                   body   {"ref":"refs/heads/main", …}
    {"ref":"refs/heads/main", …}

The body is stored as it was sent, unpacked. Nothing of it is checked, so nothing of it can be invalid: what is no text
is `raw`. `event`, `id` and `time` are looked for where webhooks have them, and are missing if they are not there. What
is looked for in a body is a member of the object, or of the only object of an array; of a form, a field.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any
from urllib.parse import unquote

import msgspec

from sluice.contrib.hooks.fields import is_kept, without_secrets
from sluice.http.request import FORM, idempotency_key
from sluice.store.keys import Keys
from sluice.store.types import Body
from sluice.streams import body as bodies
from sluice.streams.decoder import one_line
from sluice.streams.encoding import inflate_body
from sluice.streams.message import Message, parse_message, query_parameter
from sluice.streams.record import Decoded, Invalid, Limits, Record, Reject
from sluice.streams.registry import Stream
from sluice.streams.times import nanoseconds_of
from sluice.streams.unique import CONTENT_BYTES, sent_by

MOST_INFLATED = 25 << 20  # bytes of a body: as many as GitHub sends
MOST_TEXT = 500  # characters of an event or an id
YEAR_2000 = 946_684_800 * 10**9  # an earlier time is no time: a duration, or a clock that was not set

# The header fields that name an event, each from its sender's documentation: GitHub, GitLab, Gitea, Forgejo, Gogs,
# Bitbucket, Shopify, WooCommerce, Sentry, Linear, SNS, CloudEvents, Twitch, Discourse, Buildkite,
# CircleCI, Netlify, Lemon Squeezy, Kick, Plaid's and others' own
EVENT_FIELDS = (
    "x-github-event", "x-gitlab-event", "x-gitea-event", "x-forgejo-event", "x-gogs-event", "x-event-key",
    "x-shopify-topic", "x-wc-webhook-topic", "sentry-hook-resource", "linear-event", "x-amz-sns-message-type",
    "ce-type", "twitch-eventsub-subscription-type", "x-discourse-event", "x-buildkite-event",
    "circleci-event-type", "x-netlify-event", "x-event-name", "kick-event-type", "x-event-type",
    "x-event",
)  # fmt: skip
EVENT_FIELD = re.compile(r"x-[a-z0-9-]*(?:event|topic)(?:-(?:type|name|key))?")  # of any other sender
# The members that do, in the order in which they are tried
EVENT_MEMBERS = (
    "type", "event", "event_type", "eventType", "event_name", "eventName", "EventName", "webhookEvent", "object_kind",
    "eventtype", "Type", "Event", "EventType", "NotificationType", "detail-type", "notification_type",
    "notificationType", "alert_type", "RecordType", "MessageType", "messageType", "message_type", "topic", "trigger",
    "action", "kind",
    "MessageStatus", "CallStatus", "SmsStatus", "webhook_event", "webhook_code", "subscriptionType", "lifecycle",
    "status", "object",
)  # fmt: skip
# The members in which the event is, if it is not beside them: Mailgun, PagerDuty, forms with JSON, Trello
INNER = "event-data", "event", "payload", "data", "action"
NAMED = "trigger"  # the member whose name is the event: Hasura
SAME = {"notification_event"}  # of each event of Intercom, whose topic says more
GITLAB = "x-gitlab-event-uuid"
# The header fields with the id of a delivery, which is the same when it is sent again, each from its sender's
# documentation. A field that some use for the id of a subscription or of a thing is none of them
ID_FIELDS = (
    "webhook-id", "svix-id", "x-github-delivery", "x-gitea-delivery", "x-forgejo-delivery", "x-gogs-delivery",
    "x-shopify-webhook-id", "i-twilio-idempotency-token", GITLAB, "x-amz-sns-message-id", "x-wc-webhook-delivery-id",
    "linear-delivery", "x-request-uuid", "x-atlassian-webhook-identifier", "twitch-eventsub-message-id",
    "kick-event-message-id", "x-amz-firehose-request-id", "x-todoist-delivery-id", "paypal-transmission-id",
    "x-razorpay-event-id", "x-messagesystems-batch-id", "logplex-frame-id", "ce-id",
)  # fmt: skip
ID_FIELD = re.compile(r"x-(?:[a-z0-9-]+-)?delivery(?:-id)?")  # of any other sender
# The members that have it, of objects that have others: CloudEvents; Slack; SNS; Square; Typeform; Paddle; Telegram;
# Event Grid; EventBridge; Discord; Mailgun; PagerDuty; Pub/Sub; Okta; Notion; Hasura. Any
# other `id` may be that of a thing, which has many events
ID_MEMBERS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("specversion", "source"), ("id",)),
    (("api_app_id",), ("event_id",)),
    (("TopicArn",), ("MessageId",)),
    (("merchant_id",), ("event_id",)),
    (("form_response",), ("event_id",)),
    (("notification_id", "occurred_at"), ("event_id",)),
    (("update_id",), ("update_id",)),
    (("eventType", "eventTime", "subject"), ("id",)),
    (("detail-type", "source"), ("id",)),
    (("application_id", "token"), ("id",)),
    (("event-data", "signature"), ("event-data", "id")),
    (("event",), ("event", "id")),
    (("subscription", "message"), ("message", "messageId")),
    (("cloudEventsVersion",), ("eventId",)),
    (("workspace_id", "subscription_id", "attempt_number"), ("id",)),
    (("trigger", "table", "created_at"), ("id",)),
)
TIME_FIELDS = "ce-time", "webhook-timestamp", "svix-timestamp", "x-slack-request-timestamp", "x-timestamp"
TIME_MEMBERS = (
    "time", "ts", "timestamp", "created_at", "createdAt", "created", "occurred_at", "event_time", "eventTime",
    "triggered_at", "happened_at", "occurredAt", "occur_at", "fired_at", "reported_at", "received_at", "create_time",
    "createdDate", "Timestamp", "UtcTimestamp", "generatedDateTime", "event_ts", "webhookTimestamp", "sentAt",
    "sent_at", "published_at", "commit_timestamp", "date",
)  # fmt: skip

EMPTY = msgspec.Raw()
# What is looked at of an object, so that others take no memory
WANTED = tuple(dict.fromkeys((*EVENT_MEMBERS, *TIME_MEMBERS, *INNER, "id", "name", *(
    name for needed, path in ID_MEMBERS for name in (*needed, *path)
))))  # fmt: skip
Members = msgspec.defstruct(
    "Members",
    [(f"m{at}", msgspec.Raw, msgspec.field(default=EMPTY, name=name)) for at, name in enumerate(WANTED)],
    gc=False,
)
read_members: Callable[[bytes], Any] = msgspec.json.Decoder(Members).decode
read_text: Callable[[Any], str] = msgspec.json.Decoder(str).decode
read_scalar: Callable[[Any], Any] = msgspec.json.Decoder(str | int | float).decode
WITHIN = b"\r\nSluice-Within: "
STEPS = 10  # of the time in which a content counts: by one of them it may count longer
NAME = re.compile(r"/hooks/([^/]+)(?:/(.*))?$")


class Hook(Record, kw_only=True, gc=False):
    """One webhook.

    hook: the name in its path. path: what stands behind the name. id: of the delivery. query: without credentials.
    head: the header fields that are worth keeping, in lower case. body: as it was sent, if it is a text. raw: else, in
    base64.
    """

    hook: str
    path: str = ""
    event: str | None = None
    id: str | None = None
    query: str | None = None
    head: dict[str, str] = {}
    body: str | None = None
    raw: str | None = None


def decode(item: bytes, limits: Limits) -> Decoded:
    """The row of a request. Never raises."""
    try:
        message = parse_message(item)
        if message is None:
            raise Invalid("there is no head; the path names the hook")
        return Decoded((hook_of(message, limits),))
    except Exception as error:
        return Decoded((), (Reject(item, one_line(bodies.reject_reason(error)), True),))


def hook_of(message: Message, limits: Limits) -> Hook:
    """Raises: Invalid if the path has no name, or the body cannot be unpacked."""
    found = NAME.search(message.path)
    if not found:
        raise Invalid("the path has no name of a hook")
    head = head_of(message.fields)
    body = message.body
    if encoding := head.pop("content-encoding", ""):
        body = inflate_body(body, encoding, max(limits.inflated, MOST_INFLATED))
    members = members_of(body, message, limits)
    query = without_secrets(message.query.decode("latin-1"))
    text = text_of(body)
    return Hook(
        time=time_of(head, members),
        hook=readable(found[1]),
        path=readable((found[2] or "").strip("/")),
        event=event_of(head, members) or parameter(query, "event"),
        id=id_of(head, members),
        query=query or None,
        head=head,
        body=text,
        raw=b64encode(body).decode() if text is None else None,
    )


def readable(text: str) -> str:
    """A part of a path without its percent encoding."""
    return unquote(text).replace("\0", "\ufffd") if "%" in text else text


def head_of(lines: bytes) -> dict[str, str]:
    """The header fields that are kept, by their names in lower case."""
    head: dict[str, str] = {}
    for line in lines.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        key = name.decode("latin-1").lower()
        if colon and key not in head and is_kept(key):
            head[key] = value.strip().decode("utf-8", "replace").replace("\0", "\ufffd")
    return head


def text_of(body: bytes) -> str | None:
    """A body that every database can hold as a text; None: it is none. b"" is none either, and has no `raw`."""
    if b"\0" in body:
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def members_of(body: bytes, message: Message, limits: Limits) -> Mapping[str, Any]:
    """The members of an object, or of the only one of an array, each as JSON; or the fields of a form; or none."""
    text = body.removeprefix(bodies.BOM).lstrip()
    try:
        if text.startswith(b"["):
            text = only_element(text, limits)
        if text.startswith(b"{"):
            return read_object(text)
        kind = message.field("Content-Type").lower()
        if kind.startswith("multipart/form-data"):
            from sluice.contrib.formats import multipart  # without that folder, such a form has no members

            fields: Mapping[str, str] = multipart.split_parts(body, multipart.boundary_of(message), limits).fields
        elif kind.startswith(FORM) or (not body and message.query):
            fields = bodies.decode_form(body or message.query, limits)
        else:
            return {}
        return {name: msgspec.json.encode(value) for name, value in fields.items()}
    except Exception:  # it is stored as it is
        return {}


def read_object(text: bytes) -> dict[str, msgspec.Raw]:
    """The members of an object that are looked at. Raises: msgspec's errors."""
    values: tuple[msgspec.Raw, ...] = msgspec.structs.astuple(read_members(text))
    return {name: value for name, value in zip(WANTED, values) if value is not EMPTY}


def only_element(array: bytes, limits: Limits) -> bytes:
    """The element of an array with one; of others b"", as each could have an event of its own."""
    bodies.check_json(array)
    first, *others = islice(bodies.split_elements(array, bodies.Budget(limits)), 2)
    return b"" if others else first


def inner(members: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The members of a member that is an object, or that is a text with one; none if it is something else."""
    value = bytes(members.get(name, b""))
    try:
        if value.startswith(b'"{') or value.startswith(b'"\\u007b'):
            value = read_text(value).encode()
        return read_object(value) if value.startswith(b"{") else {}
    except Exception:
        return {}


def first_text(members: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these members that is a text and not empty."""
    for name in names:
        if name in members and (value := bytes(members[name])).startswith(b'"') and len(value) > 2:
            try:
                text = read_text(value)
            except msgspec.MsgspecError:
                continue
            return text[:MOST_TEXT].replace("\0", "\ufffd")
    return None


def first_field(head: Mapping[str, str], names: Sequence[str], others: re.Pattern[str]) -> str:
    """The first of these fields that is not empty, or else of others; "": there is none."""
    for name in names:
        if name in head and head[name]:
            return head[name][:MOST_TEXT]
    return next((value[:MOST_TEXT] for name, value in head.items() if value and others.fullmatch(name)), "")


def event_of(head: Mapping[str, str], members: Mapping[str, Any]) -> str | None:
    if value := first_field(head, EVENT_FIELDS, EVENT_FIELD):
        return value
    found = first_text(members, EVENT_MEMBERS)
    if found in SAME:
        found = first_text(members, ("topic",)) or found
    found = found or next(filter(None, (first_text(inner(members, name), EVENT_MEMBERS) for name in INNER)), None)
    return found or first_text(inner(members, NAMED), ("name",))


def parameter(query: str, name: str) -> str | None:
    """A parameter that says what a body does not, as ChirpStack's `event`."""
    if f"{name}=" not in query:
        return None
    try:
        return query_parameter(query.encode("latin-1"), name)[:MOST_TEXT].replace("\0", "\ufffd") or None
    except Invalid:
        return None


def id_of(head: Mapping[str, str], members: Mapping[str, Any]) -> str | None:
    """The id of a delivery; None: it has none."""
    if (sent := head.get("idempotency-key")) and (key := idempotency_key(sent)):
        return key
    if given := first_field(head, ID_FIELDS, ID_FIELD):
        return given
    if first_text(members, ("object",)) == "event" and (found := first_text(members, ("id",))):  # Stripe
        return found
    for needed, (*outer, name) in ID_MEMBERS:
        if all(each in members for each in needed):
            inside = inner(members, outer[0]) if outer else members
            value = scalar(inside.get(name))
            if isinstance(value, str | int) and value != "":
                return str(value)[:MOST_TEXT]
    return None


def time_of(head: Mapping[str, str], members: Mapping[str, Any]) -> int | None:
    """The time of the event, or else of its delivery; None: that of arrival is stored."""
    sent = (scalar(members[name]) for name in TIME_MEMBERS if name in members)
    for value in (*sent, *(head[name] for name in TIME_FIELDS if name in head)):
        time = nanoseconds_of(value)
        if time is not None and time >= YEAR_2000:
            return time
    return None


def scalar(value: Any) -> str | int | float | None:
    """A member that is a text or a number; None: it is none."""
    try:
        found: str | int | float = read_scalar(value)
    except (msgspec.MsgspecError, TypeError):
        return None
    return found.replace("\0", "\ufffd") if isinstance(found, str) else found


def key_of(records: Sequence[Any]) -> bytes:
    """What makes two deliveries one: the id that both have, at the same hook; b"": there is none."""
    if not records or records[0].id is None:
        return b""
    hook: Hook = records[0]
    more = b""
    if hook.id == hook.head.get("ce-id"):
        more = hook.head.get("ce-source", "").encode()
    elif hook.id == hook.head.get(GITLAB):  # an event that a webhook of GitLab has caused has the same
        more = sha256((hook.body or hook.raw or "").encode()).digest()
    return f"{hook.hook}\n{hook.id}\n".encode() + more


def recent_keys(item: bytes, records: Sequence[Any], received: int) -> list[bytes]:
    """The keys of a body whose hook's line says `by content within`; the gateway has noted it.

    There is one for each step of these seconds, that of its arrival first. received: microseconds since 1970.
    """
    at = item.find(WITHIN, 0, item.find(b"\r\n\r\n") + 2)
    if at < 0 or not records:
        return []
    hook: Hook = records[0]
    seconds = int(item[at + len(WITHIN) : item.index(b"\r\n", at + 2)])
    content = msgspec.json.encode((hook.hook, hook.path, hook.query, hook.body, hook.raw))
    step = -(-seconds // STEPS)
    first = received // (1_000_000 * step)
    means = sha256(sent_by(item) + content).digest()
    return [
        (number * step & 0xFFFFFFFF).to_bytes(4, "big") + sha256(means + b"%d" % number).digest()[:CONTENT_BYTES]
        for number in range(first, first + -(-seconds // step) + 1)
    ]


def without_recent(keys: Keys, claimed: Sequence[Body]) -> Sequence[Body]:
    """The bodies whose content did not come shortly before, of the same sender to the same hook.

    A body that is stored takes the keys of all steps of the time in which its content counts. One that comes asks for
    the key of its own step, and takes none if it is there: what is repeated for ever is stored once in each such time.
    """
    of_bodies = [recent_keys(body.item, body.records, body.received) for body in claimed]
    if not any(of_bodies):
        return claimed
    owners = keys.find_owners(sorted({of_body[0] for of_body in of_bodies if of_body}))
    seen = {key for key, batch in owners.items() if batch != keys.batch}
    new, asked = list[tuple[Body, bytes]](), dict[bytes, None]()
    for body, of_body in zip(claimed, of_bodies):
        if not of_body or of_body[0] not in seen:
            new.append((body, of_body[0] if of_body else b""))
            seen.update(of_body)
            asked |= dict.fromkeys(of_body)
    others = keys.take_keys([sorted(asked)], claimed[-1].received)  # of a worker that was faster
    left = [body for body, key in new if key not in others]
    keys.duplicates += len(claimed) - len(left)
    return left


HOOKS = Stream("hooks", Hook, decode, key=key_of, recent=without_recent)
