// Writes points with one of InfluxDB's clients: node FILE PACKAGE NAME. Lines of docs/INTEGRATIONS.md, which make
// `client`, are put before these. Each line of input, "FIRST COUNT", is a batch of points of the measurement NAME; what
// became of it is one line of output: "ok", or the error.

import { createInterface } from "node:readline";

const [from, name] = process.argv.slice(2);
const { Point } = await import(from);
const PLACE = "2, east = sun";
const NOTE = 'say "hi", back\\slash';
const time = (n) => `${1767268800 + n}000000000`;

const write = {
  influx: (numbers) =>
    client.writePoints(
      numbers.map((n) => ({
        measurement: name,
        tags: { place: PLACE },
        fields: { n, door: true, note: NOTE },
        timestamp: time(n),
      })),
    ),
  "@influxdata/influxdb-client": (numbers) => {
    for (const n of numbers) {
      const point = new Point(name).tag("place", PLACE).timestamp(time(n));
      client.writePoint(point.intField("n", n).booleanField("door", true).stringField("note", NOTE));
    }
    return client.flush();
  },
  "@influxdata/influxdb3-client": (numbers) =>
    client.write(
      numbers.map((n) => {
        const point = Point.measurement(name).setTag("place", PLACE).setTimestamp(time(n));
        return point.setIntegerField("n", n).setBooleanField("door", true).setStringField("note", NOTE);
      }),
    ),
}[from];

for await (const line of createInterface({ input: process.stdin })) {
  const [first, count] = line.split(" ").map(Number);
  const answer = write(Array.from({ length: count }, (_, i) => first + i)).then(() => "ok", String);
  console.log((await answer).replaceAll("\n", " "));
}
