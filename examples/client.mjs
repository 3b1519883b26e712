// A reference client for browsers and Node 20 or newer. It handles every answer of Sluice, and sends again what was not
// answered. Each post has a key, so it is stored once.
//
//     import { post } from "./client.mjs";
//     await post("http://localhost:8080/votes", { poll: "cookies", choice: "oreo" });

/** The body was rejected, and would be rejected again. */
export class Rejected extends Error {}

const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

/** Post a record, or an array of them. patience: seconds to retry after a 429, a 5xx or no answer. */
export async function post(url, record, patience = 600) {
  const body = JSON.stringify(record);
  const deadline = Date.now() + patience * 1000;
  // a page of another origin needs a preflight for this field, which INGEST_CORS allows
  const headers = { "Content-Type": "text/plain", "Idempotency-Key": `"${crypto.randomUUID()}"` };
  for (;;) {
    let wait = 1, text;
    try {
      const answer = await fetch(url, { method: "POST", body, headers, keepalive: body.length < 60000 });
      if (answer.ok) return;
      wait = Number(answer.headers.get("Retry-After") ?? 1);
      text = `${answer.status}: ${await answer.text()}`;
      if (answer.status !== 429 && answer.status < 500) throw new Rejected(text);
    } catch (error) {
      if (error instanceof Rejected) throw error;
      text = `no answer: ${error.cause ?? error}`;
    }
    if (Date.now() + wait * 1000 > deadline) throw new Error(`gave up after ${patience} s: ${text}`);
    await pause(wait);
  }
}
