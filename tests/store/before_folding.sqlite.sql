BEGIN TRANSACTION;
CREATE TABLE batches (
  id INTEGER PRIMARY KEY, claim TEXT NOT NULL UNIQUE, stream TEXT NOT NULL, first INTEGER NOT NULL,
  bodies INTEGER NOT NULL, records INTEGER NOT NULL, persisted_at TEXT NOT NULL);
INSERT INTO batches VALUES(1,'4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f-1:1:1767268800000000','votes',1,5,4,'2026-11-22T13:56:26.395Z');
INSERT INTO batches VALUES(2,'4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f-1:6:1767268800000000','votes',6,2,2,'2026-11-22T13:56:26.403Z');
INSERT INTO batches VALUES(3,'4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f-1:8:1767268800000000','votes',8,2,2,'2026-11-22T13:56:26.409Z');
CREATE TABLE batches_ranges (
  stream TEXT NOT NULL, spool TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL);
INSERT INTO batches_ranges VALUES('votes','4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f-1',1,9);
CREATE UNIQUE INDEX batches_ranges_by_first ON batches_ranges (stream, spool, first);
CREATE TABLE dead_letters (
  id INTEGER PRIMARY KEY AUTOINCREMENT, received_at TEXT NOT NULL, stream TEXT NOT NULL, body BLOB NOT NULL,
  reason TEXT NOT NULL, whole INTEGER NOT NULL, batch INTEGER NOT NULL REFERENCES batches, seq INTEGER NOT NULL);
INSERT INTO dead_letters VALUES(1,'2026-01-01T12:00:01.000Z','votes',X'7B22706F6C6C223A202270222C202263686F696365223A2022227D','wrong type or range: Expected `str` of length >= 1 - at `$.choice`',1,1,2);
CREATE INDEX dead_letters_by_body ON dead_letters (stream, batch, seq);
CREATE TABLE "gps" ("received_at" TEXT NOT NULL, "time" TEXT NOT NULL, "device" TEXT, "lat" REAL, "lon" REAL, "altitude" REAL, "speed" REAL, "accuracy" REAL, "bearing" REAL, "battery" REAL, "batch" INTEGER NOT NULL REFERENCES batches, "seq" INTEGER NOT NULL);
CREATE TABLE "logs" ("received_at" TEXT NOT NULL, "time" TEXT NOT NULL, "level" TEXT, "service" TEXT, "message" TEXT, "attributes" TEXT, "batch" INTEGER NOT NULL REFERENCES batches, "seq" INTEGER NOT NULL);
CREATE TABLE "metrics" ("received_at" TEXT NOT NULL, "time" TEXT NOT NULL, "name" TEXT, "tags" TEXT, "field" TEXT, "value", "type" TEXT, "batch" INTEGER NOT NULL REFERENCES batches, "seq" INTEGER NOT NULL);
CREATE TABLE "votes" ("received_at" TEXT NOT NULL, "time" TEXT NOT NULL, "poll" TEXT, "choice" TEXT, "voter" TEXT, "batch" INTEGER NOT NULL REFERENCES batches, "seq" INTEGER NOT NULL);
INSERT INTO votes VALUES('2026-01-01T12:00:00.000Z','2026-01-01T12:00:00.000Z','p','a',NULL,1,1);
INSERT INTO votes VALUES('2026-01-01T12:00:02.000Z','2026-01-01T12:00:02.000Z','p','b',NULL,1,3);
INSERT INTO votes VALUES('2026-01-01T12:00:03.000Z','2026-01-01T12:00:03.000Z','p','c',NULL,1,4);
INSERT INTO votes VALUES('2026-01-01T12:00:04.000Z','2026-01-01T12:00:04.000Z','p','d',NULL,1,5);
INSERT INTO votes VALUES('2026-01-01T12:00:00.000Z','2026-01-01T12:00:00.000Z','p','e',NULL,2,6);
INSERT INTO votes VALUES('2026-01-01T12:00:01.000Z','2026-01-01T12:00:01.000Z','p','f',NULL,2,7);
INSERT INTO votes VALUES('2026-01-01T12:00:00.000Z','2026-01-01T12:00:00.000Z','p','e',NULL,3,8);
INSERT INTO votes VALUES('2026-01-01T12:00:01.000Z','2026-01-01T12:00:01.000Z','p','f',NULL,3,9);
DELETE FROM main.sqlite_sequence WHERE name='dead_letters';
INSERT INTO main.sqlite_sequence VALUES ('dead_letters', 1);
PRAGMA user_version=1;
COMMIT TRANSACTION;
