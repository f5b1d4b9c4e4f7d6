-- Changes by key: rows go in, and back comes what became of each.

CREATE SCHEMA lake.shop;
CREATE TABLE lake.shop.stock (id INTEGER PRIMARY KEY, name VARCHAR, pieces INTEGER);
INSERT INTO lake.shop.stock VALUES (1, 'apple', 10), (2, 'pear', 20);
CREATE TABLE memory.main.arrivals AS FROM (VALUES (2, 'pear', 25), (3, 'plum', 5)) v(id, name, pieces);

-- only with a server: the functions of rows
SELECT * FROM lake.rows.upsert('shop.stock', (SELECT * FROM memory.main.arrivals)) ORDER BY id;
-- id | name | pieces | merge_action
-- 2 | pear | 25 | UPDATE
-- 3 | plum | 5 | INSERT
SELECT * FROM lake.shop.stock ORDER BY id;
-- id | name | pieces
-- 1 | apple | 10
-- 2 | pear | 25
-- 3 | plum | 5
SELECT * FROM lake.rows.insert_missing('shop.stock', (SELECT * FROM (VALUES (3, 0), (4, 1)) v(id, pieces))) ORDER BY id;
-- id | pieces | merge_action
-- 3 | 0 | NOTHING
-- 4 | 1 | INSERT
SELECT * FROM lake.rows.delete_matching_by('shop.stock', ['name'], (SELECT * FROM (VALUES ('plum'), ('fig')) v(name))) ORDER BY name;
-- name | merge_action
-- fig | NOTHING
-- plum | DELETE
WITH x AS MATERIALIZED (SELECT 1 AS id, 11 AS pieces UNION ALL SELECT 5, 50) SELECT merge_action, count(*) AS n FROM lake.rows.upsert('shop.stock', (SELECT * FROM x)) GROUP BY ALL ORDER BY ALL;
-- merge_action | n
-- INSERT | 1
-- UPDATE | 1
SELECT * FROM lake.rows.upsert('shop.stock', (SELECT * FROM (VALUES (7, 'a'), (7, 'b')) v(id, name)));
-- Invalid Input Error: …
SELECT id, pieces FROM lake.shop.stock ORDER BY id;
-- id | pieces
-- 1 | 11
-- 2 | 25
-- 4 | 1
-- 5 | 50

DROP SCHEMA lake.shop CASCADE;
DROP TABLE memory.main.arrivals;
