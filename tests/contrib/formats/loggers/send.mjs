// Sends what a library for Node sends: node send.mjs LIBRARY PORT. For each line of input, "FIRST COUNT", it sends
// "LIBRARY NUMBER" for each number, and prints "ok".

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const [library, port] = process.argv.slice(2);
const url = `http://127.0.0.1:${port}`;

const loggers = {
  async "winston"(options = {}) {
    const { default: winston } = await import("winston");
    const transport = new winston.transports.Http({ host: "127.0.0.1", port, path: "/logs", ...options });
    const logger = winston.createLogger({ transports: [transport] });
    return (text) => logger.info(text);
  },
  "winston, batch": () => loggers["winston"]({ batch: true, batchInterval: 50 }),
  async "winston 2"() {
    const { default: winston } = await import("winston-2");
    const logger = new winston.Logger({
      transports: [new winston.transports.Http({ host: "127.0.0.1", port, path: "/logs" })],
      emitErrs: false,
    });
    return (text) => logger.info(text);
  },
  async "pino-http-send"() {
    const { default: pino } = await import("pino");
    const options = [`--url=${url}/logs`, "--timeout=50", "--silent", "--interval=100"];
    const send = spawn("node_modules/.bin/pino-http-send", options, { stdio: ["pipe", "ignore", "inherit"] });
    process.on("exit", () => send.kill());
    const logger = pino(send.stdin);
    return (text) => logger.info(text);
  },
  async "pino-loki"() {
    const { default: pino } = await import("pino");
    const logger = pino(pino.transport({ target: "pino-loki", options: { host: url, batching: false, silenceErrors: true } }));
    return (text) => logger.info(text);
  },
  async "winston-loki"() {
    const { default: winston } = await import("winston");
    const { default: Loki } = await import("winston-loki");
    const logger = winston.createLogger({ transports: [new Loki({ host: url, json: true, batching: false })] });
    return (text) => logger.info(text);
  },
  async "logtail"() {
    const { Logtail } = await import("@logtail/node");
    const logger = new Logtail("token", { endpoint: `${url}/logs`, batchInterval: 50 });
    return (text) => logger.info(text).catch(() => {});
  },
  async "prometheus-remote-write"() {
    const { pushTimeseries } = await import("prometheus-remote-write");
    return async (text, n) => {
      const sample = { value: n, timestamp: Date.now() };
      await pushTimeseries({ labels: { __name__: library }, samples: [sample] }, { url: `${url}/api/v1/write`, fetch }).catch(() => {});
    };
  },
  async "cloudevents"() {
    const { CloudEvent, emitterFor, httpTransport } = await import("cloudevents");
    const emit = emitterFor(httpTransport(`${url}/orders`));
    return (text) => emit(new CloudEvent({ type: "order", source: "/shop", data: { sku: text } })).catch(() => {});
  },
  async "uptime-kuma"() {  // what a monitor of it calls when a service is down, and then logs of an error
    const { default: Webhook } = await import("uptime-kuma/server/notification-providers/webhook.js");
    const notification = { type: "webhook", webhookURL: `${url}/hooks/kuma`, webhookContentType: "json" };
    const monitor = { id: 1, name: "web", type: "http", url: "https://web.example" };
    const beat = (msg) => ({ monitorID: 1, status: 0, time: "2026-01-01 12:00:00.000", msg, important: true, duration: 60 });
    return (text) => new Webhook().send(notification, text, monitor, beat(text)).catch(() => {});
  },
};

const log = await loggers[library]();
for await (const line of createInterface({ input: process.stdin })) {
  const [first, count] = line.split(" ").map(Number);
  for (let n = first; n < first + count; n++) await log(`${library} ${n}`, n);
  console.log("ok");
}
process.exit();
