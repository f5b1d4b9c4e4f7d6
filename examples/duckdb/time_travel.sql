-- Every commit to a table is a version of it. Version 0 is the table as it was created.

CREATE SCHEMA lake.travel;
CREATE TABLE lake.travel.stock (id INTEGER, name VARCHAR, pieces INTEGER);
INSERT INTO lake.travel.stock VALUES (1, 'chair', 10), (2, 'desk', 3);
UPDATE lake.travel.stock SET pieces = 9 WHERE id = 1;
DELETE FROM lake.travel.stock WHERE id = 2;
SELECT * FROM lake.travel.stock ORDER BY id;
-- id | name | pieces
-- 1 | chair | 9

-- only with a server: versions
SELECT count(*) AS n FROM lake.travel.stock AT (VERSION => 0);
-- n
-- 0
SELECT * FROM lake.travel.stock AT (VERSION => 1) ORDER BY id;
-- id | name | pieces
-- 1 | chair | 10
-- 2 | desk | 3
SELECT * FROM lake.travel.stock AT (VERSION => 2) ORDER BY id;
-- id | name | pieces
-- 1 | chair | 9
-- 2 | desk | 3
SELECT * FROM lake.travel.stock AT (VERSION => 3) ORDER BY id;
-- id | name | pieces
-- 1 | chair | 9
SELECT pieces FROM lake.travel.stock AT (VERSION => 1) WHERE id = 1;
-- pieces
-- 10
SELECT sum(pieces) AS pieces FROM lake.travel.stock AT (VERSION => 2);
-- pieces
-- 12
SELECT * FROM lake.travel.stock AT (VERSION => 99);
-- IO Error: Airport @ grpc://127.0.0.1:50051/: flight_info: reading result Flight returned not found error, with message: table 'stock' has no version 99; the oldest is 0

-- What has changed between two versions.

-- only with a server: versions
SELECT b.id, a.pieces AS before, b.pieces AS after FROM lake.travel.stock AS a AT (VERSION => 1) JOIN lake.travel.stock AS b AT (VERSION => 2) USING (id) WHERE a.pieces <> b.pieces;
-- id | before | after
-- 1 | 10 | 9
SELECT id FROM lake.travel.stock AT (VERSION => 1) EXCEPT SELECT id FROM lake.travel.stock;
-- id
-- 2

-- Old rows come back by an ordinary INSERT.

-- only with a server: versions
INSERT INTO lake.travel.stock SELECT * FROM lake.travel.stock AT (VERSION => 1) WHERE id = 2;
SELECT * FROM lake.travel.stock ORDER BY id;
-- id | name | pieces
-- 1 | chair | 9
-- 2 | desk | 3

-- A time works like a version: the last commit that is not later.

-- only with a server: versions
SELECT count(*) AS n FROM lake.travel.stock AT (TIMESTAMP => now() + INTERVAL 1 DAY);
-- n
-- 2
SELECT count(*) AS n FROM lake.travel.stock AT (TIMESTAMP => TIMESTAMP '2001-01-01');
-- IO Error: Airport @ grpc://127.0.0.1:50051/: flight_info: reading result Flight returned not found error, with message: table 'stock' has no version at 2001-01-01 00:00:00; the oldest is of …

-- An old version has the columns that it had.

-- only with a server: versions
ALTER TABLE lake.travel.stock ADD COLUMN place VARCHAR;
ALTER TABLE lake.travel.stock RENAME COLUMN pieces TO amount;
SELECT * FROM lake.travel.stock ORDER BY id;
-- id | name | amount | place
-- 1 | chair | 9 | NULL
-- 2 | desk | 3 | NULL
SELECT * FROM lake.travel.stock AT (VERSION => 3) ORDER BY id;
-- id | name | pieces
-- 1 | chair | 9
SELECT place FROM lake.travel.stock AT (VERSION => 3);
-- Binder Error: Referenced column "place" not found in FROM clause!
DROP SCHEMA lake.travel CASCADE;
