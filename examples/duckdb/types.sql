-- Every type of DuckDB goes in and comes out again. What needs SET arrow_lossless_conversion is in types_lossless.sql.

CREATE SCHEMA lake.types;
USE lake.types;

-- Integers, with their limits.

CREATE TABLE integers (t TINYINT, s SMALLINT, i INTEGER, b BIGINT);
INSERT INTO integers VALUES (-128, -32768, -2147483648, -9223372036854775808), (127, 32767, 2147483647, 9223372036854775807), (NULL, NULL, NULL, NULL);
SELECT * FROM integers ORDER BY t;
-- t | s | i | b
-- -128 | -32768 | -2147483648 | -9223372036854775808
-- 127 | 32767 | 2147483647 | 9223372036854775807
-- NULL | NULL | NULL | NULL
SELECT b FROM integers WHERE b = -9223372036854775808;
-- b
-- -9223372036854775808
SELECT t FROM integers WHERE s > 0;
-- t
-- 127
SELECT count(*) AS nulls FROM integers WHERE i IS NULL;
-- nulls
-- 1
CREATE TABLE unsigned_integers (t UTINYINT, s USMALLINT, i UINTEGER, b UBIGINT);
INSERT INTO unsigned_integers VALUES (0, 0, 0, 0), (255, 65535, 4294967295, 18446744073709551615);
SELECT * FROM unsigned_integers ORDER BY t;
-- t | s | i | b
-- 0 | 0 | 0 | 0
-- 255 | 65535 | 4294967295 | 18446744073709551615
SELECT t FROM unsigned_integers WHERE b = 18446744073709551615;
-- t
-- 255
CREATE TABLE huge (h HUGEINT);
INSERT INTO huge VALUES (-99999999999999999999999999999999999999), (0), (99999999999999999999999999999999999999);
SELECT * FROM huge ORDER BY h;
-- h
-- -99999999999999999999999999999999999999
-- 0
-- 99999999999999999999999999999999999999

-- Numbers with a point.

CREATE TABLE decimals (small DECIMAL(4, 1), money DECIMAL(18, 2), wide DECIMAL(38, 10));
INSERT INTO decimals VALUES (-999.9, 0.01, 1234567890123456789012345678.0123456789), (999.9, 9999999999999999.99, -1);
SELECT * FROM decimals ORDER BY small;
-- small | money | wide
-- -999.9 | 0.01 | 1234567890123456789012345678.0123456789
-- 999.9 | 9999999999999999.99 | -1.0000000000
SELECT small FROM decimals WHERE money = 0.01;
-- small
-- -999.9
SELECT small FROM decimals WHERE wide = 1234567890123456789012345678.0123456789;
-- small
-- -999.9
SELECT sum(money) AS total, avg(small) AS average FROM decimals;
-- total | average
-- 10000000000000000.00 | 0.0
CREATE TABLE floats (f FLOAT, d DOUBLE);
INSERT INTO floats VALUES (1.5, 1e300), ('inf', '-inf'), ('nan', 'nan');
SELECT * FROM floats ORDER BY f;
-- f | d
-- 1.5 | 1e+300
-- inf | -inf
-- nan | nan
SELECT d FROM floats WHERE isinf(f);
-- d
-- -inf
SELECT f FROM floats WHERE d > 1e299 ORDER BY d;
-- f
-- 1.5
-- nan

-- Text and bytes.

CREATE TABLE texts (v VARCHAR, b BLOB);
INSERT INTO texts VALUES ('plain', 'plain'), ('Ünïcödé 🦆', '\x00\xFF'::BLOB), ('', ''), (NULL, NULL);
SELECT * FROM texts ORDER BY v NULLS LAST;
-- v | b
--  |
-- plain | plain
-- Ünïcödé 🦆 | \x00\xFF
-- NULL | NULL
SELECT v, length(v) AS length, octet_length(b) AS bytes FROM texts WHERE v LIKE '%cöd%';
-- v | length | bytes
-- Ünïcödé 🦆 | 9 | 2
SELECT b FROM texts WHERE b = '\x00\xFF'::BLOB;
-- b
-- \x00\xFF
SELECT count(*) AS empty FROM texts WHERE v = '';
-- empty
-- 1

-- Truth.

CREATE TABLE truths (id INTEGER, b BOOLEAN);
INSERT INTO truths VALUES (1, true), (2, false), (3, NULL);
SELECT * FROM truths ORDER BY id;
-- id | b
-- 1 | true
-- 2 | false
-- 3 | NULL
SELECT id FROM truths WHERE b;
-- id
-- 1
SELECT id FROM truths WHERE NOT b;
-- id
-- 2
SELECT id FROM truths WHERE b IS NOT TRUE ORDER BY id;
-- id
-- 2
-- 3

-- Dates and times.

CREATE TABLE days (d DATE);
INSERT INTO days VALUES ('2024-02-29'), ('1582-10-15'), ('9999-12-31');
SELECT d, dayname(d) AS day FROM days ORDER BY d;
-- d | day
-- 1582-10-15 | Friday
-- 2024-02-29 | Thursday
-- 9999-12-31 | Friday
SELECT d FROM days WHERE d BETWEEN '2000-01-01' AND '2100-01-01';
-- d
-- 2024-02-29
SELECT d + INTERVAL 1 YEAR AS later FROM days WHERE year(d) = 2024;
-- later
-- 2025-02-28 00:00:00
CREATE TABLE times (t TIME, n TIME_NS);
INSERT INTO times VALUES ('23:59:59.999999', '23:59:59.999999999'), ('00:00:00', '00:00:00');
SELECT * FROM times ORDER BY t;
-- t | n
-- 00:00:00 | 00:00:00
-- 23:59:59.999999 | 23:59:59.999999999
SELECT n FROM times WHERE t > '12:00:00';
-- n
-- 23:59:59.999999999
CREATE TABLE stamps (s TIMESTAMP_S, m TIMESTAMP_MS, u TIMESTAMP, n TIMESTAMP_NS, z TIMESTAMPTZ);
INSERT INTO stamps VALUES ('2024-01-02 03:04:05', '2024-01-02 03:04:05.678', '2024-01-02 03:04:05.678901', '2024-01-02 03:04:05.678901234', '2024-01-02 03:04:05.678901+02');
SELECT s, m FROM stamps;
-- s | m
-- 2024-01-02 03:04:05 | 2024-01-02 03:04:05.678
SELECT u, n FROM stamps;
-- u | n
-- 2024-01-02 03:04:05.678901 | 2024-01-02 03:04:05.678901234
SELECT z FROM stamps;
-- z
-- 2024-01-02 01:04:05.678901+00
SELECT count(*) AS found FROM stamps WHERE u = '2024-01-02 03:04:05.678901';
-- found
-- 1
SELECT count(*) AS found FROM stamps WHERE n = '2024-01-02 03:04:05.678901234';
-- found
-- 1
SELECT count(*) AS found FROM stamps WHERE z < '2024-01-02 02:00:00+00';
-- found
-- 1
SELECT date_trunc('hour', u) AS hour FROM stamps;
-- hour
-- 2024-01-02 03:00:00
CREATE TABLE spans (id INTEGER, i INTERVAL);
INSERT INTO spans VALUES (1, INTERVAL '1 year 2 months 3 days 04:05:06.789'), (2, INTERVAL '-1 day');
SELECT * FROM spans ORDER BY id;
-- id | i
-- 1 | 1 year 2 months 3 days 04:05:06.789
-- 2 | -1 day
SELECT id FROM spans WHERE i < INTERVAL '0 days';
-- id
-- 2

-- Lists, arrays, structs, maps and unions.

CREATE TABLE nested (id INTEGER, l INTEGER[], a INTEGER[3], s STRUCT(name VARCHAR, size DOUBLE), m MAP(VARCHAR, INTEGER));
INSERT INTO nested VALUES (1, [1, 2, NULL], [1, 2, 3], {'name': 'desk', 'size': 1.5}, MAP {'a': 1, 'b': 2});
INSERT INTO nested VALUES (2, [], [4, 5, 6], {'name': NULL, 'size': 0}, MAP {}), (3, NULL, NULL, NULL, NULL);
SELECT * FROM nested ORDER BY id;
-- id | l | a | s | m
-- 1 | [1, 2, NULL] | [1, 2, 3] | {'name': desk, 'size': 1.5} | {a=1, b=2}
-- 2 | [] | [4, 5, 6] | {'name': NULL, 'size': 0.0} | {}
-- 3 | NULL | NULL | NULL | NULL
SELECT id, unnest(l) AS n FROM nested ORDER BY id, n;
-- id | n
-- 1 | 1
-- 1 | 2
-- 1 | NULL
SELECT id FROM nested WHERE list_contains(l, 2);
-- id
-- 1
SELECT id, a[2] AS second FROM nested WHERE a[1] = 4;
-- id | second
-- 2 | 5
SELECT s.name, s.size FROM nested WHERE s.name = 'desk';
-- name | size
-- desk | 1.5
SELECT id, m['b'] AS b FROM nested WHERE m['a'] = 1;
-- id | b
-- 1 | 2
SELECT id FROM nested WHERE l = [1, 2, NULL];
-- id
-- 1
SELECT id FROM nested WHERE s = {'name': 'desk', 'size': 1.5};
-- id
-- 1
SELECT id, len(l) AS length, cardinality(m) AS entries FROM nested ORDER BY id;
-- id | length | entries
-- 1 | 3 | 2
-- 2 | 0 | 0
-- 3 | NULL | NULL
CREATE TABLE deep (id INTEGER, d STRUCT(tags VARCHAR[], lines STRUCT(product VARCHAR, prices DECIMAL(6, 2)[])[]));
INSERT INTO deep VALUES (1, {'tags': ['new', 'paid'], 'lines': [{'product': 'lamp', 'prices': [9.99, 8.99]}, {'product': 'desk', 'prices': []}]});
SELECT d FROM deep;
-- d
-- {'tags': [new, paid], 'lines': [{'product': lamp, 'prices': [9.99, 8.99]}, {'product': desk, 'prices': []}]}
SELECT d.lines[1].product AS product, d.lines[1].prices[2] AS price FROM deep;
-- product | price
-- lamp | 8.99
CREATE TABLE unions (id INTEGER, u UNION(number INTEGER, word VARCHAR));
INSERT INTO unions VALUES (1, 42), (2, 'two'::VARCHAR);
SELECT id, u, union_tag(u) AS tag FROM unions ORDER BY id;
-- id | u | tag
-- 1 | 42 | number
-- 2 | two | word

-- JSON and UUID are text on the way: the operators of JSON work on both.

CREATE TABLE documents (id UUID, doc JSON);
INSERT INTO documents VALUES ('8f14e45f-ceea-467f-9d3c-1a2b3c4d5e6f', '{"name": "Ada", "born": 1815}');
SELECT * FROM documents;
-- id | doc
-- 8f14e45f-ceea-467f-9d3c-1a2b3c4d5e6f | {"name": "Ada", "born": 1815}
SELECT doc->>'name' AS name, (doc->'born')::INTEGER AS born FROM documents WHERE doc->>'name' = 'Ada';
-- name | born
-- Ada | 1815
SELECT count(*) AS found FROM documents WHERE id = '8f14e45f-ceea-467f-9d3c-1a2b3c4d5e6f';
-- found
-- 1

-- An ENUM is kept as text.

CREATE TYPE memory.main.mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE people (name VARCHAR, mood memory.main.mood);
INSERT INTO people VALUES ('Ada', 'happy'), ('Bob', 'sad');
SELECT * FROM people ORDER BY name;
-- name | mood
-- Ada | happy
-- Bob | sad
SELECT name FROM people WHERE mood = 'happy';
-- name
-- Ada

-- In CREATE TABLE AS an ENUM must be cast: see docs/duckdb.md.

CREATE TABLE moods AS SELECT name, mood::VARCHAR AS mood FROM people;
SELECT * FROM moods ORDER BY name;
-- name | mood
-- Ada | happy
-- Bob | sad
USE memory;
DROP SCHEMA lake.types CASCADE;
