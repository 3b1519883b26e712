// A reference client for browsers and Node 18 or newer. It handles every answer of Sluice.
//
//     import { post } from "./client.mjs";
//     await post("http://localhost:8080/votes", { poll: "cookies", choice: "oreo" });

/** The body was rejected, and would be rejected again. */
export class Rejected extends Error {}

/** Unknown whether the body was accepted. Send it again only if a duplicate is better than a loss. */
export class Unknown extends Error {}

const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

/** Post a record, or an array of them. patience: seconds to retry after a 429 or 503. */
export async function post(url, record, patience = 600) {
  const body = JSON.stringify(record);
  const deadline = Date.now() + patience * 1000;
  for (;;) {
    let answer;
    try {
      // text/plain needs no CORS preflight; Sluice ignores the type
      answer = await fetch(url, { method: "POST", body, headers: { "Content-Type": "text/plain" }, keepalive: body.length < 60000 });
    } catch (error) {
      throw new Unknown(`no answer: ${error.cause ?? error}`);
    }
    if (answer.ok) return;
    const text = await answer.text();
    if (answer.status !== 429 && answer.status !== 503) {
      throw new (answer.status >= 500 ? Unknown : Rejected)(`${answer.status}: ${text}`);
    }
    const wait = Number(answer.headers.get("Retry-After") ?? 1);
    if (Date.now() + wait * 1000 > deadline) throw new Error(`gave up after ${patience} s: ${text}`);
    await pause(wait);
  }
}
