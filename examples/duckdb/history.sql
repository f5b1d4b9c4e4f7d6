-- What has happened to a table: its versions, and the rows that each has changed.

CREATE SCHEMA lake.past;
CREATE TABLE lake.past.stock (id INTEGER, pieces INTEGER);
INSERT INTO lake.past.stock VALUES (1, 10), (2, 3), (3, 7);
UPDATE lake.past.stock SET pieces = 9 WHERE id = 1;
DELETE FROM lake.past.stock WHERE id = 2;

-- only with a server: history
SELECT version, operation, inserted, updated, deleted, rows FROM lake.history.snapshots('past.stock');
-- version | operation | inserted | updated | deleted | rows
-- 0 | create | NULL | NULL | NULL | NULL
-- 1 | append | 3 | 0 | 0 | 3
-- 2 | overwrite | 0 | 1 | 0 | 3
-- 3 | delete | 0 | 0 | 1 | 2
SELECT kind, version, id, pieces FROM lake.history.changes('past.stock', 1, 3);
-- kind | version | id | pieces
-- update_before | 2 | 1 | 10
-- update_after | 2 | 1 | 9
-- delete | 3 | 2 | 3
SELECT kind, version, id, pieces FROM lake.history.changes('past.stock', 2);
-- kind | version | id | pieces
-- delete | 3 | 2 | 3
SELECT count(*) AS n FROM lake.history.changes('past.stock', 3, 3);
-- n
-- 0
SELECT version FROM lake.history.head('past.stock');
-- version
-- 3
SELECT * FROM lake.history.changes('past.stock', 3, 1);
-- Invalid Input Error: changes from version 3 to 1: the first is later than the last
SELECT * FROM lake.history.changes('past.stock', 1, 99);
-- IO Error: Airport @ grpc://127.0.0.1:50051/: table_function_flight_info: reading result Flight returned not found error, with message: table 'stock' has no version 99; the oldest is 0
SELECT * FROM lake.history.snapshots('past.nobody');
-- IO Error: Airport @ grpc://127.0.0.1:50051/: table_function_flight_info: reading result Flight returned not found error, with message: table 'past.nobody' not found

-- Versions that are kept by a name, and a way back.

-- only with a server: history
SELECT lake.history.tag('past.stock', 'counted', 2) AS tag;
-- tag
-- counted
SELECT name, kind, version FROM lake.history.tags('past.stock');
-- name | kind | version
-- counted | tag | 2
SELECT * FROM lake.past.stock AT (VERSION => 'counted') ORDER BY id;
-- id | pieces
-- 1 | 9
-- 2 | 3
-- 3 | 7
SELECT lake.history.rollback('past.stock', 'counted') AS version;
-- version
-- 4
SELECT * FROM lake.past.stock ORDER BY id;
-- id | pieces
-- 1 | 9
-- 2 | 3
-- 3 | 7
SELECT kind, id FROM lake.history.changes('past.stock', 3);
-- kind | id
-- insert | 2
SELECT lake.history.untag('past.stock', 'counted') AS tag;
-- tag
-- counted
SELECT * FROM lake.past.stock AT (VERSION => 'counted');
-- IO Error: Airport @ grpc://127.0.0.1:50051/: flight_info: reading result 'counted' is not a version of table 'stock': neither a number nor a tag or branch
SELECT lake.history.branch('past.stock', 'experiment', 3) AS branch;
-- branch
-- experiment
SELECT name, kind, version FROM lake.history.tags('past.stock');
-- name | kind | version
-- experiment | branch | 3
SELECT * FROM lake.past.stock AT (VERSION => 'experiment') ORDER BY id;
-- id | pieces
-- 1 | 9
-- 3 | 7
SELECT lake.history.drop_branch('past.stock', 'experiment') AS branch;
-- branch
-- experiment

-- A table that was dropped comes back.

DROP TABLE lake.past.stock;

-- only with a server: history
SELECT name FROM lake.history.dropped WHERE schema = 'past';
-- name
-- stock
SELECT lake.history.restore('past.stock') AS name;
-- name
-- past.stock
SELECT lake.history.restore('past.stock');
-- IO Error: Airport @ grpc://127.0.0.1:50051/lake/history/scalar_function/restore: FlightReader::Next Flight returned already exists error, with message: table 'past.stock' already exists: rename or drop it first.
SELECT lake.history.restore('past.nobody');
-- IO Error: Airport @ grpc://127.0.0.1:50051/lake/history/scalar_function/restore: FlightReader::Next Flight returned not found error, with message: no table 'past.nobody' was dropped that could be restored.

DROP SCHEMA lake.past CASCADE;
