--
-- PostgreSQL database dump
--


-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: ff; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA ff;


--
-- Name: _private(); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._private() RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ begin return 1; end $$;


--
-- Name: count_parcels(); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.count_parcels() RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ begin return (select count(*) from ff.parcel); end $$;


--
-- Name: lose_parcel(); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.lose_parcel() RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ begin return 0; end $$;


--
-- Name: now(); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.now() RETURNS timestamp with time zone
    LANGUAGE sql
    AS $$ select clock_timestamp() $$;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: meta; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.meta (
    name text NOT NULL,
    value text
);


--
-- Name: schema_step; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.schema_step (
    step integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    breaking boolean NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: installation; Type: VIEW; Schema: ff; Owner: -
--

CREATE VIEW ff.installation AS
 SELECT s.step,
    s.name,
    s.checksum,
    s.breaking,
    s.applied_at,
    ( SELECT (m.value)::integer AS value
           FROM ff.meta m
          WHERE (m.name = 'library_version'::text)) AS library_version,
    ( SELECT m.value
           FROM ff.meta m
          WHERE (m.name = 'library_hash'::text)) AS library_hash
   FROM (( SELECT) one
     LEFT JOIN ff.schema_step s ON (true));


--
-- Name: parcel; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.parcel (
    id integer NOT NULL
);


--
-- Name: parcel_view; Type: VIEW; Schema: ff; Owner: -
--

CREATE VIEW ff.parcel_view AS
 SELECT p.id
   FROM ff.parcel p;


--
-- Data for Name: meta; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.meta (name, value) FROM stdin;
partitions	1
instance_tag_key	\N
library_version	1
library_hash	3b91b18a509ccc382354e0eb3fd1433cf71430ecd4cb9a3ab4980c516a252619
\.


--
-- Data for Name: parcel; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.parcel (id) FROM stdin;
1
2
3
\.


--
-- Data for Name: schema_step; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.schema_step (step, name, checksum, breaking, applied_at) FROM stdin;
1	parcel	e337bc4d50c06dbe60514426ed985823a5e9d7392a13bfef982e93781d9ec345	f	2026-11-16 18:22:47.982339+00
\.


--
-- Name: meta meta_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (name);


--
-- Name: parcel parcel_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.parcel
    ADD CONSTRAINT parcel_pkey PRIMARY KEY (id);


--
-- Name: schema_step schema_step_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.schema_step
    ADD CONSTRAINT schema_step_pkey PRIMARY KEY (step);


--
-- Name: FUNCTION _private(); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._private() FROM PUBLIC;


--
-- Name: FUNCTION count_parcels(); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.count_parcels() FROM PUBLIC;


--
-- Name: FUNCTION lose_parcel(); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.lose_parcel() FROM PUBLIC;


--
-- Name: FUNCTION now(); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.now() FROM PUBLIC;


--
-- PostgreSQL database dump complete
--


