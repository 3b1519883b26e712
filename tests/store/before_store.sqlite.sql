BEGIN TRANSACTION;
CREATE TABLE batches (
  id INTEGER PRIMARY KEY, claim TEXT NOT NULL UNIQUE, stream TEXT NOT NULL, first INTEGER NOT NULL,
  bodies INTEGER NOT NULL, records INTEGER NOT NULL, persisted_at TEXT NOT NULL);
INSERT INTO "batches" VALUES(2,'votes:3:1767268800000000','votes',3,2,1,'2026-11-25T20:23:36.145Z');
INSERT INTO "batches" VALUES(3,'votes:5:1767268800000000','votes',5,1,1,'2026-11-25T20:23:36.148Z');
CREATE TABLE batches_carried (name TEXT NOT NULL, rows BLOB NOT NULL);
INSERT INTO "batches_carried" VALUES('w-000000000001',X'726F7773');
CREATE TABLE batches_cells (cell TEXT NOT NULL UNIQUE, seen TEXT NOT NULL, figures TEXT NOT NULL);
INSERT INTO "batches_cells" VALUES('c1','2026-11-25T20:23:36.159Z','{"streams": []}');
CREATE TABLE batches_expired (
  stream TEXT NOT NULL, spool TEXT NOT NULL, deleted INTEGER NOT NULL, expired INTEGER NOT NULL);
INSERT INTO "batches_expired" VALUES('votes','',7,0);
CREATE TABLE batches_folded (
  stream TEXT NOT NULL, spool TEXT NOT NULL, first_batch INTEGER NOT NULL, last_batch INTEGER NOT NULL);
INSERT INTO "batches_folded" VALUES('votes','votes',1,2);
CREATE TABLE batches_objects (stream TEXT NOT NULL, name TEXT NOT NULL);
INSERT INTO "batches_objects" VALUES('gps','w-000000000001');
CREATE TABLE batches_ranges (
  stream TEXT NOT NULL, spool TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL);
INSERT INTO "batches_ranges" VALUES('votes','votes',1,5);
CREATE TABLE batches_spools (
  stream TEXT NOT NULL, spool TEXT NOT NULL, cell TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
  purged INTEGER NOT NULL);
INSERT INTO "batches_spools" VALUES('votes','votes','c1',1,5,0);
CREATE TABLE dead_letters (
  id INTEGER PRIMARY KEY AUTOINCREMENT, received_at TEXT NOT NULL, stream TEXT NOT NULL, body BLOB NOT NULL,
  reason TEXT NOT NULL, whole INTEGER NOT NULL, batch INTEGER NOT NULL, seq INTEGER NOT NULL);
INSERT INTO "dead_letters" VALUES(1,'2026-01-01T12:00:01.000Z','votes',X'7B22706F6C6C223A202270222C202263686F696365223A2022227D','wrong type or range: Expected `str` of length >= 1 - at `$.choice`',1,2,4);
CREATE TABLE "gps" ("received_at" TEXT NOT NULL, "time" TEXT NOT NULL, "device" TEXT, "lat" REAL, "lon" REAL, "altitude" REAL, "speed" REAL, "accuracy" REAL, "bearing" REAL, "battery" REAL, "batch" INTEGER NOT NULL, "seq" INTEGER NOT NULL);
CREATE TABLE "logs" ("received_at" TEXT NOT NULL, "time" TEXT NOT NULL, "level" TEXT, "service" TEXT, "message" TEXT, "attributes" TEXT, "batch" INTEGER NOT NULL, "seq" INTEGER NOT NULL);
CREATE TABLE "metrics" ("received_at" TEXT NOT NULL, "time" TEXT NOT NULL, "name" TEXT, "tags" TEXT, "field" TEXT, "value", "type" TEXT, "batch" INTEGER NOT NULL, "seq" INTEGER NOT NULL);
CREATE TABLE "votes" ("received_at" TEXT NOT NULL, "time" TEXT NOT NULL, "poll" TEXT, "choice" TEXT, "voter" TEXT, "batch" INTEGER NOT NULL, "seq" INTEGER NOT NULL);
INSERT INTO "votes" VALUES('2026-01-01T12:00:00.000Z','2026-01-01T12:00:00.000Z','p','a',NULL,1,1);
INSERT INTO "votes" VALUES('2026-01-01T12:00:01.000Z','2026-01-01T12:00:01.000Z','p','b',NULL,1,2);
INSERT INTO "votes" VALUES('2026-01-01T12:00:00.000Z','2026-01-01T12:00:00.000Z','p','c',NULL,2,3);
INSERT INTO "votes" VALUES('2026-01-01T12:00:00.000Z','2026-01-01T12:00:00.000Z','p','d',NULL,3,5);
CREATE UNIQUE INDEX batches_ranges_by_first ON batches_ranges (stream, spool, first);
CREATE UNIQUE INDEX batches_folded_by_spool ON batches_folded (stream, spool);
CREATE UNIQUE INDEX batches_spools_by_name ON batches_spools (stream, spool);
CREATE UNIQUE INDEX batches_expired_by_spool ON batches_expired (stream, spool);
CREATE INDEX dead_letters_by_body ON dead_letters (stream, batch, seq);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('dead_letters',1);
COMMIT;
PRAGMA user_version=2;
