-- Without this setting DuckDB sends UUID, JSON, BIT and HUGEINT as text, bytes or decimals. With it they keep their types.

SET arrow_lossless_conversion = true;
CREATE SCHEMA lake.lossless;
USE lake.lossless;

CREATE TABLE ids (id UUID, n INTEGER);
INSERT INTO ids VALUES ('8f14e45f-ceea-467f-9d3c-1a2b3c4d5e6f', 1), ('00000000-0000-0000-0000-000000000000', 2);
SELECT * FROM ids ORDER BY n;
-- id | n
-- 8f14e45f-ceea-467f-9d3c-1a2b3c4d5e6f | 1
-- 00000000-0000-0000-0000-000000000000 | 2
SELECT n, typeof(id) AS type FROM ids WHERE id = '8f14e45f-ceea-467f-9d3c-1a2b3c4d5e6f'::UUID;
-- n | type
-- 1 | UUID
UPDATE ids SET id = 'ffffffff-ffff-ffff-ffff-ffffffffffff' WHERE n = 2 RETURNING id;
-- id
-- ffffffff-ffff-ffff-ffff-ffffffffffff
SELECT n FROM ids WHERE id > '8f14e45f-ceea-467f-9d3c-1a2b3c4d5e6f'::UUID;
-- n
-- 2
SELECT n FROM ids WHERE id IN ('ffffffff-ffff-ffff-ffff-ffffffffffff'::UUID, '11111111-1111-1111-1111-111111111111'::UUID);
-- n
-- 2

CREATE TABLE huge (n INTEGER, h HUGEINT, u UHUGEINT);
INSERT INTO huge VALUES (1, -170141183460469231731687303715884105728, 0), (2, 170141183460469231731687303715884105727, 340282366920938463463374607431768211455);
SELECT * FROM huge ORDER BY n;
-- n | h | u
-- 1 | -170141183460469231731687303715884105728 | 0
-- 2 | 170141183460469231731687303715884105727 | 340282366920938463463374607431768211455
SELECT n FROM huge WHERE h = 170141183460469231731687303715884105727;
-- n
-- 2
SELECT n FROM huge WHERE u > 0;
-- n
-- 2
SELECT n FROM huge WHERE h < 0;
-- n
-- 1
SELECT typeof(h) AS h, typeof(u) AS u FROM huge LIMIT 1;
-- h | u
-- HUGEINT | UHUGEINT

CREATE TABLE bits (n INTEGER, b BIT);
INSERT INTO bits VALUES (1, '101'), (2, '00000000'), (3, NULL);
SELECT * FROM bits ORDER BY n;
-- n | b
-- 1 | 101
-- 2 | 00000000
-- 3 | NULL
SELECT n, bit_count(b) AS ones FROM bits WHERE b = '101'::BIT;
-- n | ones
-- 1 | 2
SELECT typeof(b) AS type FROM bits LIMIT 1;
-- type
-- BIT

CREATE TABLE documents (n INTEGER, doc JSON);
INSERT INTO documents VALUES (1, '{"name": "Ada", "langs": ["en", "fr"]}'), (2, '[1, 2, 3]'), (3, 'null');
SELECT n, doc->>'$.langs[1]' AS second FROM documents WHERE json_type(doc) = 'OBJECT';
-- n | second
-- 1 | fr
SELECT n, json_array_length(doc) AS length FROM documents ORDER BY n;
-- n | length
-- 1 | 0
-- 2 | 3
-- 3 | 0
SELECT typeof(doc) AS type FROM documents LIMIT 1;
-- type
-- JSON

CREATE TABLE clocks (n INTEGER, t TIMETZ);
INSERT INTO clocks VALUES (1, '12:34:56+02'), (2, '00:00:00+00');
SELECT * FROM clocks ORDER BY n;
-- n | t
-- 1 | 12:34:56+02
-- 2 | 00:00:00+00
SELECT n FROM clocks WHERE t = '12:34:56+02'::TIMETZ;
-- n
-- 1

CREATE TABLE truths (n INTEGER, b BOOLEAN);
INSERT INTO truths VALUES (1, true), (2, false), (3, NULL);
SELECT n FROM truths WHERE b;
-- n
-- 1
SELECT n FROM truths WHERE NOT b;
-- n
-- 2
UPDATE truths SET b = true WHERE b IS NULL RETURNING n, b;
-- n | b
-- 3 | true

-- CREATE TABLE AS keeps these types too. Without the setting it would end the DuckDB process for UUID, UHUGEINT and BIT.

CREATE TABLE copied AS SELECT i.n, id, u, b FROM ids i JOIN huge USING (n) JOIN bits USING (n);
SELECT * FROM copied ORDER BY n;
-- n | id | u | b
-- 1 | 8f14e45f-ceea-467f-9d3c-1a2b3c4d5e6f | 0 | 101
-- 2 | ffffffff-ffff-ffff-ffff-ffffffffffff | 340282366920938463463374607431768211455 | 00000000
SELECT typeof(id) AS id, typeof(u) AS u, typeof(b) AS b FROM copied LIMIT 1;
-- id | u | b
-- UUID | UHUGEINT | BIT
USE memory;
DROP SCHEMA lake.lossless CASCADE;
