// A reference client for browsers and Node 18 or newer: what to do with each answer.
//
//     import { post } from "./client.mjs";
//     await post("http://localhost:8080/votes", { poll: "cookies", choice: "oreo" });

/** The body was not taken and never will be as it stands. */
export class Refused extends Error {}

/** Nobody knows whether the body was taken. Send it again if twice is better than never. */
export class Unknown extends Error {}

const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

/** Post a record, or an array of them. patience: seconds that it is tried for while it is put off. */
export async function post(url, record, patience = 600) {
  const body = JSON.stringify(record);
  const deadline = Date.now() + patience * 1000;
  for (;;) {
    let answer;
    try {
      // text/plain: a browser asks nobody before it sends it; Sluice does not read the type
      answer = await fetch(url, { method: "POST", body, headers: { "Content-Type": "text/plain" }, keepalive: body.length < 60000 });
    } catch (error) {
      throw new Unknown(`no answer: ${error.cause ?? error}`);
    }
    if (answer.ok) return;
    const text = await answer.text();
    if (answer.status !== 429 && answer.status !== 503) {
      throw new (answer.status >= 500 ? Unknown : Refused)(`${answer.status}: ${text}`);
    }
    const wait = Number(answer.headers.get("Retry-After") ?? 1);
    if (Date.now() + wait * 1000 > deadline) throw new Error(`put off for ${patience} s: ${text}`);
    await pause(wait);
  }
}
