CREATE TYPE public.batches_span AS RANGE (
    subtype = text,
    multirange_type_name = public.batches_span_multirange,
    collation = pg_catalog."C"
);
CREATE TABLE public.batches (
    id bigint NOT NULL,
    claim text NOT NULL,
    stream text NOT NULL,
    first bigint NOT NULL,
    bodies bigint NOT NULL,
    records bigint NOT NULL,
    persisted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE public.batches_carried (
    name text NOT NULL,
    rows bytea NOT NULL
);
ALTER TABLE ONLY public.batches_carried ALTER COLUMN rows SET STORAGE EXTERNAL;
CREATE TABLE public.batches_cells (
    cell text NOT NULL,
    seen timestamp with time zone NOT NULL,
    figures jsonb NOT NULL
);
CREATE TABLE public.batches_expired (
    stream text NOT NULL,
    spool text NOT NULL,
    deleted bigint NOT NULL,
    expired bigint NOT NULL
);
CREATE TABLE public.batches_folded (
    stream text NOT NULL,
    spool text NOT NULL,
    first_batch bigint NOT NULL,
    last_batch bigint NOT NULL
);
ALTER TABLE public.batches ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.batches_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.batches_layout (
    version bigint NOT NULL
);
CREATE TABLE public.batches_objects (
    stream text NOT NULL,
    name text NOT NULL
);
CREATE TABLE public.batches_ranges (
    stream text NOT NULL,
    spool text NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL
);
CREATE TABLE public.batches_spools (
    stream text NOT NULL,
    spool text NOT NULL,
    cell text NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    purged bigint NOT NULL
);
CREATE TABLE public.dead_letters (
    id bigint NOT NULL,
    received_at timestamp with time zone NOT NULL,
    stream text NOT NULL,
    body bytea NOT NULL,
    reason text NOT NULL,
    whole boolean NOT NULL,
    batch bigint NOT NULL,
    seq bigint NOT NULL
);
ALTER TABLE public.dead_letters ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.dead_letters_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.gps (
    received_at timestamp with time zone NOT NULL,
    "time" timestamp with time zone NOT NULL,
    device text,
    lat double precision,
    lon double precision,
    altitude double precision,
    speed double precision,
    accuracy double precision,
    bearing double precision,
    battery double precision,
    batch bigint NOT NULL,
    seq bigint NOT NULL
);
CREATE TABLE public.logs (
    received_at timestamp with time zone NOT NULL,
    "time" timestamp with time zone NOT NULL,
    level text,
    service text,
    message text,
    attributes jsonb,
    batch bigint NOT NULL,
    seq bigint NOT NULL
);
CREATE TABLE public.metrics (
    received_at timestamp with time zone NOT NULL,
    "time" timestamp with time zone NOT NULL,
    name text,
    tags jsonb,
    field text,
    value numeric,
    type text,
    text text,
    nanoseconds smallint,
    batch bigint NOT NULL,
    seq bigint NOT NULL
);
CREATE TABLE public.view_changes (
    id bigint NOT NULL,
    stream text NOT NULL,
    batch bigint NOT NULL
);
ALTER TABLE public.view_changes ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.view_changes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.votes (
    received_at timestamp with time zone NOT NULL,
    "time" timestamp with time zone NOT NULL,
    poll text,
    choice text,
    voter text,
    batch bigint NOT NULL,
    seq bigint NOT NULL
);
INSERT INTO public.batches OVERRIDING SYSTEM VALUE VALUES (2, 'votes:3:1767268800000000', 'votes', 3, 2, 1, '2026-11-25 20:23:38.018408+00');
INSERT INTO public.batches OVERRIDING SYSTEM VALUE VALUES (3, 'votes:5:1767268800000000', 'votes', 5, 1, 1, '2026-11-25 20:23:38.020706+00');
INSERT INTO public.batches_carried VALUES ('w-000000000001', '\x726f7773');
INSERT INTO public.batches_cells VALUES ('c1', '2026-11-25 20:23:38.0383+00', '{"streams": []}');
INSERT INTO public.batches_expired VALUES ('votes', '', 7, 0);
INSERT INTO public.batches_folded VALUES ('votes', 'votes', 1, 2);
INSERT INTO public.batches_layout VALUES (2);
INSERT INTO public.batches_objects VALUES ('gps', 'w-000000000001');
INSERT INTO public.batches_ranges VALUES ('votes', 'votes', 1, 5);
INSERT INTO public.batches_spools VALUES ('votes', 'votes', 'c1', 1, 5, 0);
INSERT INTO public.dead_letters OVERRIDING SYSTEM VALUE VALUES (1, '2026-01-01 12:00:01+00', 'votes', '\x7b22706f6c6c223a202270222c202263686f696365223a2022227d', 'wrong type or range: Expected `str` of length >= 1 - at `$.choice`', true, 2, 4);
INSERT INTO public.votes VALUES ('2026-01-01 12:00:00+00', '2026-01-01 12:00:00+00', 'p', 'a', NULL, 1, 1);
INSERT INTO public.votes VALUES ('2026-01-01 12:00:01+00', '2026-01-01 12:00:01+00', 'p', 'b', NULL, 1, 2);
INSERT INTO public.votes VALUES ('2026-01-01 12:00:00+00', '2026-01-01 12:00:00+00', 'p', 'c', NULL, 2, 3);
INSERT INTO public.votes VALUES ('2026-01-01 12:00:00+00', '2026-01-01 12:00:00+00', 'p', 'd', NULL, 3, 5);
SELECT pg_catalog.setval('public.batches_id_seq', 3, true);
SELECT pg_catalog.setval('public.dead_letters_id_seq', 1, true);
SELECT pg_catalog.setval('public.view_changes_id_seq', 1, false);
ALTER TABLE ONLY public.batches_carried
    ADD CONSTRAINT batches_carried_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.batches_cells
    ADD CONSTRAINT batches_cells_pkey PRIMARY KEY (cell);
ALTER TABLE ONLY public.batches
    ADD CONSTRAINT batches_claim_key UNIQUE (claim);
ALTER TABLE ONLY public.batches_expired
    ADD CONSTRAINT batches_expired_pkey PRIMARY KEY (stream, spool);
ALTER TABLE ONLY public.batches_folded
    ADD CONSTRAINT batches_folded_pkey PRIMARY KEY (stream, spool);
ALTER TABLE ONLY public.batches_objects
    ADD CONSTRAINT batches_objects_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.batches
    ADD CONSTRAINT batches_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.batches_ranges
    ADD CONSTRAINT batches_ranges_excluded EXCLUDE USING gist (public.batches_span(((((stream || ' '::text) || spool) || ' '::text) || lpad((first)::text, 19, '0'::text)), ((((stream || ' '::text) || spool) || ' '::text) || lpad(((last + 1))::text, 19, '0'::text))) WITH &&);
ALTER TABLE ONLY public.dead_letters
    ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.view_changes
    ADD CONSTRAINT view_changes_pkey PRIMARY KEY (id);
CREATE UNIQUE INDEX batches_spools_by_name ON public.batches_spools USING btree (stream, spool);
CREATE INDEX dead_letters_by_body ON public.dead_letters USING btree (stream, batch, seq);
