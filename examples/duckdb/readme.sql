-- The first session of README.md. Before it: LOAD airport; ATTACH 'lake' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');

SET disabled_optimizers = 'common_subplan';
SET arrow_lossless_conversion = true;
CREATE TABLE lake.public.users (id BIGINT NOT NULL, name VARCHAR, CHECK (id > 0));
INSERT INTO lake.public.users VALUES (1, 'Ada'), (2, 'Grace') RETURNING id;
-- id
-- 1
-- 2
UPDATE lake.public.users SET name = 'Countess' WHERE id = 1;
SELECT * FROM lake.public.users ORDER BY id;
-- id | name
-- 1 | Countess
-- 2 | Grace

-- only with a server: versions
SELECT * FROM lake.public.users AT (VERSION => 1);
-- id | name
-- 1 | Ada
-- 2 | Grace

-- Several statements, all of them or none: tx.begin() before, tx.commit() after.

-- only with a server: the functions of tx
BEGIN;
SELECT lake.tx.begin();
-- lake.tx."begin"()
-- …
INSERT INTO lake.public.users VALUES (3, 'Edsger');
UPDATE lake.public.users SET name = 'Ada' WHERE id = 1;
SELECT lake.tx.commit();
-- lake.tx."commit"()
-- committed
COMMIT;
SELECT * FROM lake.public.users ORDER BY id;
-- id | name
-- 1 | Ada
-- 2 | Grace
-- 3 | Edsger

-- Keys are kept, and rows changed by them.

CREATE TABLE lake.public.stock (item VARCHAR PRIMARY KEY, amount INTEGER);

-- only with a server: the functions of rows
SELECT * FROM lake.rows.upsert('public.stock', (SELECT 'tea' AS item, 5 AS amount));
-- item | amount | merge_action
-- tea | 5 | INSERT

DROP TABLE lake.public.stock;

-- Names are found without regard to case, and shorter after USE.

USE lake.public;
SELECT count(*) AS users FROM USERS WHERE id < 3;
-- users
-- 2
SELECT name FROM users WHERE id = 2;
-- name
-- Grace
DELETE FROM users WHERE id = 2 RETURNING name;
-- name
-- Grace
SELECT id FROM users WHERE name = 'Grace';
-- id
USE memory;
DROP TABLE lake.public.users;
SELECT * FROM lake.public.users;
-- Catalog Error: Table with name users does not exist!
