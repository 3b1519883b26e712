// Fetches status.json once a second and draws it. Data is inserted as text, never as HTML.

const $ = (selector) => document.querySelector(selector);
const LATE = 30; // seconds the oldest body may wait before the page reports a backlog
const SOON = { memory: 1, disk: 24 }; // hours: what becomes full sooner is reported, as in deploy/prometheus/rules.yml
const STALE = 15; // seconds after which figures count as old; a reading takes five while Redis is unavailable
const EXAMPLES = {
  "/votes": (mark) => `{"poll":"status page","choice":"it works","voter":"${mark}"}`,
  "/gps": (mark) => `{"device":"${mark}","lat":48.13743,"lon":11.57549,"speed":6.2}`,
  "/metrics": (mark) => `{"name":"status_page","value":1,"tags":{"mark":"${mark}"}}`,
  "/logs": (mark) => `{"level":"info","service":"status page","message":"it works","mark":"${mark}"}`,
  "/write": (mark) => `status_page,mark=${mark} value=1`,
};
// Sluice's own root, which ends in a slash: a proxy may serve it below a prefix.
const ROOT = location.pathname.replace(/status\/*$/, "");
let shown = null; // the newest status.json
let clock = 0; // the server's time of the fetch, seconds; the browser's clock may be wrong

// --- words ---------------------------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en");
const brief = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });
const number = (n) => (n == null ? "?" : whole.format(n));
const each = (n) => (n == null ? "?" : n >= 100 ? whole.format(Math.round(n)) : String(+n.toFixed(1)));
const bodies = (n) => `${number(n)} ${n === 1 ? "body" : "bodies"}`;

function span(seconds) {
  if (seconds < 100) return `${seconds < 10 ? +seconds.toFixed(1) : Math.round(seconds)} s`;
  const [size, name] = seconds < 6000 ? [60, "min"] : seconds < 360000 ? [3600, "h"] : [86400, "d"];
  return `${Math.round(seconds / size)} ${name}`;
}

function size(bytes) {
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return `${+(bytes / 1024 ** power).toFixed(power ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

function sum(name) {
  const counts = shown.streams.map((stream) => stream[name]);
  return counts.includes(null) ? null : counts.reduce((a, b) => a + b, 0);
}

function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// --- the verdict ---------------------------------------------------------------------------------------------------

function judge() {
  const old = clock - shown.time;
  if (old > STALE)
    return ["bad", `These figures are ${span(old)} old`, "The page process does not update them; see log/page.log."];
  const redis = shown.trouble.find((line) => line.startsWith("Redis"));
  if (redis) return ["bad", "Redis is unavailable: no writes are accepted", `Clients get 503 with Retry-After. ${redis}`];
  if (!shown.gateway)
    return ["bad", "The gateway is unavailable: no writes are accepted", "Clients get 502 or 504; see the gateway's log."];
  const ready = sum("ready");
  if (ready == null) return ["bad", "What waits is unknown", shown.trouble[0] ?? "Its figures do not come."];
  const base = shown.trouble.find((line) => line.startsWith("the database is unavailable"));
  if (base && (sum("accepted") || !base.includes("no database yet")))
    return ["bad", "The database is unavailable", `Writes are accepted and wait in Redis: ${bodies(ready)} now. ${base}`];
  if (shown.trouble.some((line) => line.startsWith("the disk is almost full")))
    return ["bad", "The disk is almost full: no writes are accepted", "Clients get 503 with Retry-After until there is room. Redis keeps what waits."];
  const missing = shown.streams.filter((stream) => stream.missing);
  if (missing.length)
    return ["bad", `${missing.map(({ stream, missing: n }) => `${stream}: ${number(Math.abs(n))}${n < 0 ? " too many" : ""}`).join(", ")}${missing.some((stream) => stream.missing > 0) ? " missing" : ""}`,
      "The ledger does not add up; bin/sluice status explains it."];
  const undecodable = shown.streams.filter((stream) => stream.ready && !stream.decoder);
  if (undecodable.length)
    return ["slow", `No decoder for ${undecodable.map((stream) => stream.stream).join(", ")}`,
      "The bodies wait in Redis. INGEST_RECORDS names the module that has the decoder."];
  const refused = shown.streams.filter((stream) => stream.error && !stream.unpublished);
  if (refused.length)
    return ["bad", `${refused.map((stream) => stream.stream).join(", ")} cannot be stored`,
      `Writes are accepted and wait in Redis. ${refused[0].stream}: ${refused[0].error}`];
  const held = shown.streams.filter((stream) => stream.unpublished);
  if (held.length)
    return ["bad", `Rows of ${held.map((stream) => stream.stream).join(", ")} wait for their destination`,
      `${bodies(held[0].unpublished)} for ${span(held[0].unpublished_seconds)}. ${held[0].unpublished_reason}`];
  const oldest = Math.max(...shown.streams.map((stream) => stream.oldest_seconds ?? 0));
  const speed = sum("taken_rate");
  const flow = sum("accepted_rate");
  const waits = `${bodies(ready + sum("claimed"))} ${ready + sum("claimed") === 1 ? "waits" : "wait"}`;
  if (oldest > LATE && !speed)
    return ["bad", "Nothing is being stored", `${waits}, the oldest for ${span(oldest)}. ${shown.workers ? "The worker makes no progress" : "No worker is running"}; see the worker's log.`];
  if (oldest > LATE) {
    const left = speed > flow ? ` At this rate it catches up in ${span(ready / (speed - flow))}.` : "";
    return ["slow", `The worker is ${span(oldest)} behind`, `${waits}. ${each(flow)}/s are accepted, ${each(speed)}/s claimed.${left}`];
  }
  if (shown.workers === 0 && ready) return ["slow", "No worker is running", `${waits}. Writes are accepted and wait in Redis.`];
  if (shown.memory.most && shown.memory.used > 0.9 * shown.memory.most)
    return ["slow", "Redis is nearly full", `${waits}. When it is full, clients get 503 with Retry-After.`];
  const late = shown.cells.filter((cell) => cell.late);
  if (late.length)
    return ["slow", `${late.map((cell) => cell.cell).join(", ")} was not seen for ${span(Math.max(...late.map((cell) => cell.seconds)))}`,
      `${bodies(late.reduce((waiting, cell) => waiting + cell.ready + cell.claimed, 0))} waited there. If the cell is gone for good, bin/sluice status --forget removes it.`];
  const { disk, memory } = shown.hours_left;
  if (memory != null && memory < SOON.memory)
    return ["slow", `Redis is full in ${span(memory * 3600)}`, `${waits}. At the rate of the last minutes its memory ends then, and clients get 503 with Retry-After.`];
  if (disk != null && disk < SOON.disk)
    return ["slow", `The disk is full in ${span(disk * 3600)}`, "At the rate of the last hour. Then no writes are accepted, and nothing is stored."];
  const unread = shown.views.filter((view) => ["full", "unavailable"].includes(view.state));
  if (unread.length)
    return ["slow", `${unread.map((view) => view.path).join(", ")} cannot be read`, unread[0].state === "full"
      ? "The views' Redis is full: raise INGEST_VIEWS_MEMORY. Reads get 503; writes are not affected."
      : "The views' Redis is unavailable. Reads get 503; writes are not affected."];
  const behind = Math.max(...shown.views.map(delay));
  if (behind > LATE)
    return ["slow", `The views are ${span(behind)} behind`, "The follower makes no progress; see the follower's log. Writes are not affected."];
  const dead = sum("dead");
  const but = dead ? ` ${bodies(dead)} ${dead === 1 ? "is" : "are"} dead: the reasons are below.` : "";
  if (sum("accepted") === 0) return ["good", "Ready. Nothing received yet", "Send a test event at the end of this page."];
  if (flow > 0) return ["good", `Receiving ${each(flow)} bodies/s`, `The workers keep up; nothing is missing.${but}`];
  const last = shown.hour.findLast((row) => row[1] > 0);
  const since = last ? ` The last body arrived ${span(Math.max(0, clock - last[0]))} ago.` : shown.hour.length ? " Nothing was received in the last hour or since the start." : "";
  return ["good", "Idle: all bodies are stored", `Nothing waits, nothing is missing.${since}${but}`];
}

function verdict() {
  const [state, title, text] = judge();
  say($("#verdict"), state, title, text);
  document.title = `${{ good: "✓", slow: "!", bad: "✕" }[state]} Sluice`;
}

function say(section, state, title, text) {
  section.dataset.state = state;
  // a screen reader announces every assignment, so assign only changes
  for (const [part, words] of [[section.children[0], title], [section.children[1], text]])
    if (part.textContent !== words) part.textContent = words;
}

// --- the picture and the ledger ------------------------------------------------------------------------------------

function station(id, figure, detail, state = "") {
  const place = $(`#${id}`);
  place.dataset.state = state;
  place.children[1].textContent = figure >= 1e9 ? brief.format(figure) : number(figure); // the ledger has all digits
  place.children[2].textContent = detail;
}

function picture() {
  const oldest = Math.max(...shown.streams.map((stream) => stream.oldest_seconds ?? 0));
  const [ready, claimed, dead] = ["ready", "claimed", "dead"].map(sum);
  const late = oldest > LATE ? "slow" : "";
  station("accepted", sum("accepted"), `${each(sum("accepted_rate"))}/s`);
  station("ready", ready, ready ? `oldest: ${span(oldest)}` : ready == null ? "" : "nothing waits", ready ? late : "");
  station("claimed", claimed, workers(), claimed ? late : "");
  station("stored", sum("stored"), `${each(sum("taken_rate"))}/s`);
  const rejected = shown.turned_away.reduce((total, { answers }) => total + answers, 0);
  station("dead", dead, rejected ? `${number(rejected)} ${rejected === 1 ? "request was" : "requests were"} rejected` : "", dead ? "slow" : "");
}

function left() {
  const { memory, disk, hours_left: hours } = shown;
  const part = (name, free, soon, rate) => `${name}: ${size(free)} free${soon == null ? "" : `, full in ${span(soon * 3600)} at the rate of the last ${rate}`}.`;
  $("#left").textContent = [
    disk && part("Disk", disk.free, hours.disk, "hour"),
    memory?.most && part("Redis's memory", Math.max(0, memory.most - memory.used), hours.memory, "two minutes"),
  ].filter(Boolean).join(" ");
}

function workers() {
  const count = shown.workers;
  return count == null ? "" : count === 0 ? "no worker runs" : count === 1 ? "1 worker" : `${count} workers`;
}

// Changes the cells of a table; a row stays while it has the same name, so that it can be clicked. rows: the name, then
// the cells, each a text, or a text and whether it is bad. open: makes of a name a button that calls it.
function table(place, rows, open = null) {
  const names = [...document.querySelectorAll(`${place} thead th`)].map((head) => head.textContent);
  const body = $(`${place} tbody`);
  rows.forEach(([name, ...cells], at) => {
    let row = body.children[at];
    if (row?.dataset.name !== name || row.children.length !== cells.length + 1) {
      const made = element("tr", "", { "data-name": name });
      made.append(element("th", open ? "" : name, { scope: "row" }));
      if (open) made.firstChild.append(link(name, open));
      cells.forEach((_, cell) => made.append(element("td", "", { "data-name": names[cell + 1] })));
      row ? row.replaceWith(made) : body.append(made);
      row = made;
    }
    cells.forEach((cell, at) => {
      const [text, bad] = [].concat(cell);
      const place = row.children[at + 1];
      if (place.textContent !== text) place.textContent = text;
      place.className = bad ? "bad" : /^(0|–|0 \/s)$/.test(text) ? "zero" : "";
    });
  });
  while (body.children.length > rows.length) body.lastChild.remove();
}

// A button that looks like a link. open: gets its text.
function link(name, open) {
  const made = element("button", name, { type: "button", class: "link" });
  made.addEventListener("click", () => open(name));
  return made;
}

function ledger() {
  const purged = shown.streams.filter((stream) => stream.purged).map((stream) => `${stream.stream}: ${number(stream.purged)}`);
  const deleted = shown.streams.filter((stream) => stream.deleted).map((stream) => `${stream.stream}: ${number(stream.deleted)}`);
  $("#deleted").textContent = deleted.length ? `Rows deleted by age: ${deleted.join(", ")}.` : "";
  $("#purged").textContent = purged.length ? `Discarded by bin/sluice purge: ${purged.join(", ")}.` : "";
  table("#ledger", shown.streams.map((stream) => {
    const counts = ["accepted", "ready", "claimed", "stored", "dead", "duplicate"].map((name) => number(stream[name]));
    const oldest = stream.ready == null ? "?" : stream.oldest_seconds == null ? "–" : span(stream.oldest_seconds);
    return [stream.stream, ...counts, [number(stream.missing), stream.missing], oldest, `${each(stream.accepted_rate)} /s`];
  }), openRows);
}

// --- the last rows of a stream -------------------------------------------------------------------------------------

let opened = null; // the stream whose rows are shown
let rowsDrawn = "";

async function openRows(stream) {
  opened = stream;
  rowsDrawn = "";
  await rows();
  $("#rows").scrollIntoView({ block: "nearest" });
  $("#rows-title").focus({ preventScroll: true });
}

// Read only while they are shown.
async function rows() {
  $("#rows").hidden = opened === null;
  if (opened === null) return;
  const stream = opened;
  const answer = await fetch(`${ROOT}status/rows.json`, { cache: "no-store" }).catch(() => null);
  const found = (answer?.ok ? await answer.json() : {})[stream] ?? { columns: [], rows: [], letters: [] };
  const text = JSON.stringify([stream, found]);
  if (stream !== opened || text === rowsDrawn) return; // redrawing would clear a text selection
  rowsDrawn = text;
  const [title, note] = $("#rows").children;
  title.textContent = `Last rows of ${stream}`;
  note.textContent = found.rows.length
    ? `Newest first, long values cut. In a terminal: bin/sluice rows ${stream}`
    : "There is no row in the table. What has just been accepted is there within a second or two.";
  $("#rows thead tr").replaceChildren(...found.columns.map((name) => element("th", name, { scope: "col" })));
  $("#rows tbody").replaceChildren(...found.rows.map((values) => {
    const row = element("tr");
    values.forEach((value, at) => row.append(element(at ? "td" : "th", value?.replace(/^(\d{4}-\d\d-\d\d)T(?=\d\d:)/, "$1 ") ?? "–", { "data-name": found.columns[at], class: value == null ? "zero" : "" })));
    return row;
  }));
  $("#rows h3").hidden = !found.letters.length;
  $("#rows ol").replaceChildren(...found.letters.map(({ time, reason, bytes, body }) => {
    const line = element("li");
    line.append(when(time), element("span", `${number(bytes)} bytes`, { class: "stream" }), element("span", reason), element("span", body, { class: "body" }));
    return line;
  }));
}
$("#rows > button").addEventListener("click", () => { opened = null; rows(); });

function cells() {
  $("#cells").hidden = shown.cells.length < 2;
  table("#cells table", shown.cells.map((cell) => {
    const counts = ["accepted", "ready", "claimed", "stored", "dead", "duplicate"].map((name) => number(cell[name]));
    return [cell.cell, [`${span(cell.seconds)} ago`, cell.late], ...counts, [number(cell.missing), cell.missing]];
  }));
}

function senders() {
  $("#senders").hidden = !shown.senders.length; // no key has a name
  table("#senders table", shown.senders.map(({ sender, stored, stored_rate: speed, rejected }) => {
    const all = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);
    const [rate, path] = [rejected[429] ?? 0, rejected[403] ?? 0];
    return [sender, number(all(stored)), `${each(speed)} /s`, number(rate), number(path), number(all(rejected) - rate - path)];
  }));
}

// Seconds that a view is behind the database; a tally, the view with refreshes, may be as old as its period.
const delay = (view) => (view.refreshes == null ? view.lag ?? 0 : 0);

function views() {
  $("#views").hidden = !shown.views.length; // INGEST_VIEWS=off
  const known = (value, words) => (value == null ? "–" : words(value));
  table("#views table", shown.views.map((view) => [
    view.path,
    [view.state, ["full", "unavailable"].includes(view.state)],
    `${each(view.reads_rate)} /s`,
    known(view.hits, (share) => `${Math.floor(share * 1000 + 1e-6) / 10} %`),
    known(view.keys, number),
    [known(view.lag, span), delay(view) > LATE],
    known(view.refreshes, number),
  ]));
}

function unknownFields() {
  $("#unknown").hidden = !shown.unknown_fields.length;
  table("#unknown table", shown.unknown_fields.map(({ stream, field, bodies: n, examined }) => [field, stream, number(n), number(examined)]));
}

// --- dead letters --------------------------------------------------------------------------------------------------

function when(text) {
  const time = new Date(text);
  const day = time.toDateString() === new Date(clock * 1000).toDateString() ? "" : `${time.toLocaleDateString()} `;
  return element("time", day + time.toLocaleTimeString(), { datetime: text, title: text });
}

let drawn = "";
function letters() {
  const text = JSON.stringify([shown.dead, shown.turned_away]);
  if (text === drawn) return; // redrawing would clear a text selection
  drawn = text;
  const { reasons, letters, more } = shown.dead;
  $("#letters-note").textContent = reasons.length
    ? "Invalid bodies are kept with their reason. bin/sluice dead --full shows them, bin/sluice replay decodes them again."
    : "There are no dead letters. An invalid body is kept here with its reason.";
  const tally = (count, where, reason) => {
    const line = element("li");
    line.append(element("span", `${number(count)} ×`, { class: "count" }), element("span", where, { class: "stream" }), element("span", reason));
    return line;
  };
  $("#reasons").replaceChildren(...reasons.map(({ stream, reason, letters: count }) => tally(count, stream, reason)));
  $("#away-note").textContent = shown.turned_away.length ? "By reason, since counting began. A client gets 429 and 503 with the seconds to wait." : "None.";
  $("#turned-away").replaceChildren(...shown.turned_away.map(({ answers, where, reason }) => tally(answers, where, reason)));
  $("#newest").hidden = !letters.length;
  if (more) {
    const rest = element("li");
    rest.append(element("span", `and ${number(more)} other reasons`, { class: "all" }));
    $("#reasons").append(rest);
  }
  $("#letters").replaceChildren(...letters.map((letter) => {
    const line = element("li");
    line.append(when(letter.time), element("span", letter.stream, { class: "stream" }), element("span", letter.reason));
    line.append(element("span", letter.excerpt, { class: "body", title: `${number(letter.bytes)} bytes` }));
    return line;
  }));
}

// The last rejected requests, read only while their list is open.
let errorsDrawn = "";
async function errors() {
  if (!$("#errors").open) return;
  const answer = await fetch(`${ROOT}status/errors.json`, { cache: "no-store" }).catch(() => null);
  const text = answer?.ok ? await answer.text() : "[]";
  if (text === errorsDrawn) return;
  errorsDrawn = text;
  $("#errors ol").replaceChildren(...JSON.parse(text).map(({ time, status, path, reason, sender }) => {
    const line = element("li");
    line.append(when(new Date(time * 1000).toISOString()), element("span", status, { class: "stream" }), element("span", reason));
    line.append(element("span", `${path || "?"} from ${sender || "?"}`, { class: "body" }));
    return line;
  }));
}
$("#errors").addEventListener("toggle", errors);

// --- charts --------------------------------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";
function svg(parent, name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  parent.append(made);
  return made;
}

// The smallest of 1, 2 or 5 times a power of ten that is not below n.
function round(n) {
  const power = 10 ** Math.floor(Math.log10(n));
  return power * [1, 2, 5, 10].find((step) => step * power >= n);
}

const short = (n) => (n >= 1e9 ? `${+(n / 1e9).toFixed(1)}G` : n >= 1e6 ? `${+(n / 1e6).toFixed(1)}M` : n >= 1e4 ? `${+(n / 1e3).toFixed(1)}k` : String(+n.toFixed(1)));

// A chart of the last hour. lines: [class, column of a row]; readings: row -> [class, label, figure] for the readout.
class Chart {
  constructor(figure, title, lines, readings) {
    this.lines = lines;
    this.readings = readings;
    this.at = null; // the row under the cursor
    const caption = element("figcaption");
    caption.append(element("h2", title), (this.readout = element("p", "", { class: "readout", "aria-live": "off" })));
    this.plot = element("div", "", { class: "plot", tabindex: "0", role: "slider", "aria-label": `${title}, by time; arrow keys move` });
    this.svg = svg(this.plot, "svg", { "aria-hidden": "true" });
    figure.append(caption, this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.move(null));
    this.plot.addEventListener("blur", () => this.move(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const time = this.end - (1 - (event.clientX - box.left - this.left) / (this.width - this.left)) * this.span;
    const near = (row) => Math.abs(row[0] - time);
    this.move(this.rows.reduce((best, row, at) => (near(row) < near(this.rows[best]) ? at : best), 0));
  }

  key(event) {
    const last = this.rows.length - 1;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageDown: -6, PageUp: 6, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") this.move(null);
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.move(Math.min(last, Math.max(0, (this.at ?? last + 1) + steps[event.key])));
  }

  move(at) {
    this.at = at;
    this.draw();
  }

  draw() {
    if (!shown) return;
    this.rows = hour();
    this.end = this.rows.at(-1)[0];
    // in the first minutes an hour would show only a dot at the edge
    this.span = 60 * [5, 15, 30, 60].find((minutes) => minutes === 60 || this.rows[0][0] > this.end - 60 * minutes);
    this.width = this.svg.clientWidth;
    this.left = 40;
    const height = this.svg.clientHeight - 22;
    const max = round(Math.max(1, ...this.rows.flatMap((row) => this.lines.map(([, column]) => row[column] ?? 0))));
    const x = (time) => this.left + (1 + (time - this.end) / this.span) * (this.width - this.left);
    const y = (value) => height - (value / max) * (height - 8);
    this.svg.replaceChildren();
    for (const part of [0, 0.5, 1]) {
      svg(this.svg, "line", { class: "grid", x1: this.left, x2: this.width, y1: y(max * part), y2: y(max * part) });
      svg(this.svg, "text", { x: this.left - 8, y: y(max * part) + 4, "text-anchor": "end" }, short(max * part));
    }
    for (const part of this.width < 420 ? [1, 0.5, 0] : [1, 0.8, 0.6, 0.4, 0.2, 0]) {
      const anchor = part ? "middle" : "end";
      svg(this.svg, "text", { x: this.width - (part * (this.width - this.left)), y: height + 18, "text-anchor": anchor }, part ? `−${+((this.span / 60) * part).toFixed(1)} min` : "now");
    }
    for (const [name, column] of this.lines)
      for (const run of this.runs(column)) {
        const points = run.map((row) => `${x(row[0]).toFixed(1)} ${y(row[column]).toFixed(1)}`);
        if (run.length === 1) points.unshift(`${(x(run[0][0]) - 2).toFixed(1)} ${y(run[0][column]).toFixed(1)}`);
        if (name === "in")
          svg(this.svg, "path", { class: "area", d: `M${points.join("L")}L${x(run.at(-1)[0])} ${height}L${points[0].split(" ")[0]} ${height}Z` });
        svg(this.svg, "path", { class: name, d: `M${points.join("L")}` });
      }
    const row = this.rows[Math.min(this.at ?? Infinity, this.rows.length - 1)];
    if (this.at != null) svg(this.svg, "line", { class: "cursor", x1: x(row[0]), x2: x(row[0]), y1: 0, y2: height });
    this.read(row);
  }

  // The runs of consecutive rows in which a column is known.
  runs(column) {
    const found = [];
    let last = -Infinity;
    for (const row of this.rows) {
      if (row[column] == null) last = -Infinity;
      else {
        if (row[0] - last > 2 * STALE) found.push([]);
        found.at(-1).push(row);
        last = row[0];
      }
    }
    return found;
  }

  read(row) {
    this.readout.replaceChildren();
    for (const [name, words, figure] of this.readings(row)) {
      const part = element("span", "", { class: "part" });
      if (name) part.append(element("span", "", { class: `key ${name}` }));
      part.append(`${words} `, element("b", figure));
      this.readout.append(part);
    }
    this.readout.append(element("span", this.at == null ? "now" : new Date(row[0] * 1000).toLocaleTimeString(), { class: "part" }));
    const values = { valuemin: 0, valuemax: this.rows.length - 1, valuenow: this.at ?? this.rows.length - 1 };
    for (const [name, value] of Object.entries(values)) this.plot.setAttribute(`aria-${name}`, value);
    this.plot.setAttribute("aria-valuetext", [...this.readout.children].map((part) => part.textContent).join(", "));
  }
}

// The rows of the last hour, and one for the present.
function hour() {
  const waiting = sum("ready") == null || sum("claimed") == null ? null : sum("ready") + sum("claimed");
  const oldest = sum("ready") == null ? null : Math.max(...shown.streams.map((stream) => stream.oldest_seconds ?? 0));
  return [...shown.hour, [shown.time, sum("accepted_rate"), sum("taken_rate"), waiting, oldest]];
}

const charts = [
  new Chart($("#rate"), "Bodies per second", [["in", 1], ["out", 2]], (row) => [["in", "accepted", each(row[1])], ["out", "claimed", each(row[2])]]),
  new Chart($("#backlog"), "Bodies waiting", [["in", 3]], (row) => [["in", "waiting", number(row[3])], ["", "oldest", row[4] == null ? "?" : span(row[4])]]),
];

// --- the test event ------------------------------------------------------------------------------------------------

const form = $("form");
const mark = () => `test-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;

function paths() {
  const known = shown.streams.flatMap((stream) => stream.paths);
  const offered = known.filter((path) => path in EXAMPLES).concat(known.filter((path) => !(path in EXAMPLES)));
  const chosen = form.path.value;
  if (offered.join() === [...form.path.options].map((option) => option.value).join()) return;
  form.path.replaceChildren(...offered.map((path) => element("option", path, { value: path })));
  form.path.value = offered.includes(chosen) ? chosen : offered.includes("/votes") ? "/votes" : offered[0];
  if (form.path.value !== chosen) propose();
}

function propose() {
  form.body.value = (EXAMPLES[form.path.value] ?? (() => "{}"))(mark());
}

form.path.addEventListener("change", propose);
form.body.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});

let sending = 0;
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const turn = ++sending;
  const steps = $("#steps");
  steps.replaceChildren();
  const step = (state, text) => {
    steps.lastChild?.dataset.state === "" && steps.lastChild.remove();
    steps.append(element("li", text, { "data-state": state }));
  };
  const [path, body] = [form.path.value, form.body.value];
  const stream = () => shown.streams.find((one) => one.paths.includes(path));
  const before = stream();
  step("", `Posting ${new TextEncoder().encode(body).length} bytes to ${path} …`);
  const start = performance.now();
  let answer;
  try {
    answer = await fetch(ROOT + path.slice(1), { method: "POST", body, headers: form.key.value ? { "X-API-Key": form.key.value } : {} });
  } catch {
    return step("bad", "There was no response. The event may have been accepted.");
  }
  const took = Math.round(performance.now() - start);
  if (!answer.ok) {
    $("#key").hidden = answer.status !== 401 && $("#key").hidden;
    const problem = await answer.json().catch(() => ({}));
    return step("bad", `Rejected: ${answer.status} ${problem.title ?? ""}. ${problem.detail ?? ""}`);
  }
  step("good", `Accepted: ${answer.status} after ${took} ms. It is on the list in Redis.`);
  step("", "Waiting for the database …");
  propose();
  // A body accepted before `then` has a sequence number of at most `last`: once `through` reaches that, ours is stored.
  await look();
  const then = clock;
  let last = null;
  while (turn === sending) {
    const now = stream();
    if (now && shown.time >= then && last === null) last = now.accepted;
    if (now && last !== null && now.through !== null && now.through >= last) {
      const letter = shown.dead.letters.find((one) => one.stream === now.stream && one.seq > (before.accepted ?? 0) && one.seq <= last && same(one.excerpt, body));
      if (letter) return step("bad", `Invalid: ${letter.reason}. It is in the dead letters.`);
      if (now.dead !== (before.dead ?? 0)) return step("good", "Processed. The dead letters show whether it was invalid.");
      return step("good", `Stored in the table ${now.stream}, within ${span(Math.max(0.1, clock - then + took / 1000))}.`);
    }
    await new Promise((done) => setTimeout(done, 250));
    await look();
  }
});

// Whether `excerpt` is that of `body`. The excerpt escapes unprintable characters.
function same(excerpt, body) {
  const text = body.replace(/\n/g, "\\n");
  return excerpt.endsWith("…") ? text.startsWith(excerpt.slice(0, -1)) : text === excerpt;
}

// --- once a second -------------------------------------------------------------------------------------------------

async function look() {
  try {
    const answer = await fetch(`${ROOT}status/status.json`, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status === 404 ? "The page process has not written any figures yet." : `status.json: ${answer.status}`);
    clock = Number(answer.headers.get("Sluice-Time"));
    shown = await answer.json();
  } catch (error) {
    const unreachable = error instanceof TypeError;
    say($("#verdict"), unreachable ? "bad" : "wait", unreachable ? "nginx is unreachable" : "Loading …", unreachable ? "The figures below are the last received." : error.message);
    return;
  }
  verdict();
  picture();
  left();
  ledger();
  cells();
  senders();
  views();
  unknownFields();
  letters();
  paths();
  for (const chart of charts) chart.draw();
  $("#clock").textContent = new Date(clock * 1000).toLocaleTimeString();
}

async function watch() {
  if (!document.hidden) await Promise.all([look(), errors(), rows()]);
  setTimeout(watch, 1000);
}
document.addEventListener("visibilitychange", () => document.hidden || look());
watch();
