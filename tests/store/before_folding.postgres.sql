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
CREATE TABLE public.batches_ranges (
    stream text NOT NULL,
    spool text NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL
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
INSERT INTO public.batches OVERRIDING SYSTEM VALUE VALUES (1, '4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f-1:1:1767268800000000', 'votes', 1, 5, 4, '2026-11-22 13:56:28.88748+00');
INSERT INTO public.batches OVERRIDING SYSTEM VALUE VALUES (2, '4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f-1:6:1767268800000000', 'votes', 6, 2, 2, '2026-11-22 13:56:28.890984+00');
INSERT INTO public.batches OVERRIDING SYSTEM VALUE VALUES (3, '4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f-1:8:1767268800000000', 'votes', 8, 2, 2, '2026-11-22 13:56:28.898252+00');
INSERT INTO public.batches_layout VALUES (1);
INSERT INTO public.batches_ranges VALUES ('votes', '4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f-1', 1, 5);
INSERT INTO public.batches_ranges VALUES ('votes', '4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f-1', 6, 7);
INSERT INTO public.batches_ranges VALUES ('votes', '4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f-1', 8, 9);
INSERT INTO public.dead_letters OVERRIDING SYSTEM VALUE VALUES (1, '2026-01-01 12:00:01+00', 'votes', '\x7b22706f6c6c223a202270222c202263686f696365223a2022227d', 'wrong type or range: Expected `str` of length >= 1 - at `$.choice`', true, 1, 2);
INSERT INTO public.votes VALUES ('2026-01-01 12:00:00+00', '2026-01-01 12:00:00+00', 'p', 'a', NULL, 1, 1);
INSERT INTO public.votes VALUES ('2026-01-01 12:00:02+00', '2026-01-01 12:00:02+00', 'p', 'b', NULL, 1, 3);
INSERT INTO public.votes VALUES ('2026-01-01 12:00:03+00', '2026-01-01 12:00:03+00', 'p', 'c', NULL, 1, 4);
INSERT INTO public.votes VALUES ('2026-01-01 12:00:04+00', '2026-01-01 12:00:04+00', 'p', 'd', NULL, 1, 5);
INSERT INTO public.votes VALUES ('2026-01-01 12:00:00+00', '2026-01-01 12:00:00+00', 'p', 'e', NULL, 2, 6);
INSERT INTO public.votes VALUES ('2026-01-01 12:00:01+00', '2026-01-01 12:00:01+00', 'p', 'f', NULL, 2, 7);
INSERT INTO public.votes VALUES ('2026-01-01 12:00:00+00', '2026-01-01 12:00:00+00', 'p', 'e', NULL, 3, 8);
INSERT INTO public.votes VALUES ('2026-01-01 12:00:01+00', '2026-01-01 12:00:01+00', 'p', 'f', NULL, 3, 9);
SELECT pg_catalog.setval('public.batches_id_seq', 3, true);
SELECT pg_catalog.setval('public.dead_letters_id_seq', 1, true);
SELECT pg_catalog.setval('public.view_changes_id_seq', 1, false);
ALTER TABLE ONLY public.batches
    ADD CONSTRAINT batches_claim_key UNIQUE (claim);
ALTER TABLE ONLY public.batches
    ADD CONSTRAINT batches_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.batches_ranges
    ADD CONSTRAINT batches_ranges_excluded EXCLUDE USING gist (public.batches_span(((((stream || ' '::text) || spool) || ' '::text) || lpad((first)::text, 19, '0'::text)), ((((stream || ' '::text) || spool) || ' '::text) || lpad(((last + 1))::text, 19, '0'::text))) WITH &&);
ALTER TABLE ONLY public.dead_letters
    ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.view_changes
    ADD CONSTRAINT view_changes_pkey PRIMARY KEY (id);
CREATE INDEX dead_letters_by_body ON public.dead_letters USING btree (stream, batch, seq);
ALTER TABLE ONLY public.dead_letters
    ADD CONSTRAINT dead_letters_batch_fkey FOREIGN KEY (batch) REFERENCES public.batches(id);
