// Sends metrics and logs with OpenTelemetry's SDK: node send.mjs http|proto NAME. The endpoint is in the environment.
// For each line of input, "FIRST COUNT", it sends log records, and prints "ok" when they have been exported.

import { createInterface } from "node:readline";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { BatchLogRecordProcessor, LoggerProvider } from "@opentelemetry/sdk-logs";
import { AggregationType, MeterProvider, PeriodicExportingMetricReader } from "@opentelemetry/sdk-metrics";

const [encoding, name] = process.argv.slice(2);
const { OTLPMetricExporter } = await import(`@opentelemetry/exporter-metrics-otlp-${encoding}`);
const { OTLPLogExporter } = await import(`@opentelemetry/exporter-logs-otlp-${encoding}`);
const resource = resourceFromAttributes({ "service.name": name });

const meters = new MeterProvider({
  resource,
  readers: [new PeriodicExportingMetricReader({ exporter: new OTLPMetricExporter() })],
  views: [{ instrumentName: "*.exponential", aggregation: { type: AggregationType.EXPONENTIAL_HISTOGRAM } }],
});
const meter = meters.getMeter("js", "1.0");
meter.createCounter("http.requests", { unit: "1" }).add(5, { route: "/", status: 200 });
meter.createGauge("room").record(21.5);
for (const kind of ["explicit", "exponential"]) meter.createHistogram(`size.${kind}`).record(3);
await meters.shutdown();

const loggers = new LoggerProvider({ resource, processors: [new BatchLogRecordProcessor({ exporter: new OTLPLogExporter() })] });
const logger = loggers.getLogger("js");
for await (const line of createInterface({ input: process.stdin })) {
  const [first, count] = line.split(" ").map(Number);
  for (let n = first; n < first + count; n++)
    logger.emit({ severityNumber: 13, severityText: "WARN", body: `line ${n}`, attributes: { n, tags: ["a", { b: 1.5 }] } });
  await loggers.forceFlush();
  console.log("ok");
}
await loggers.shutdown();
