-- Creating, altering and dropping. No change of a column rewrites a row.

CREATE SCHEMA lake.shop;
CREATE SCHEMA IF NOT EXISTS lake.shop;
USE lake.shop;
CREATE TABLE items (id BIGINT NOT NULL, name VARCHAR, price DECIMAL(10, 2), CHECK (id > 0));
CREATE TABLE items (id BIGINT);
-- IO Error: Airport @ grpc://127.0.0.1:50051/: create_table: reading result Flight returned already exists error, with message: table 'shop.items' already exists
CREATE TABLE IF NOT EXISTS items (id BIGINT);
DESCRIBE items;
-- column_name | column_type | null | key | default | extra
-- id | BIGINT | NO | NULL | NULL | NULL
-- name | VARCHAR | YES | NULL | NULL | NULL
-- price | DECIMAL(10,2) | YES | NULL | NULL | NULL
INSERT INTO items VALUES (1, 'lamp', 19.95), (2, 'desk', 199.00);

-- Columns.

ALTER TABLE items ADD COLUMN note VARCHAR;
SELECT * FROM items ORDER BY id;
-- id | name | price | note
-- 1 | lamp | 19.95 | NULL
-- 2 | desk | 199.00 | NULL
ALTER TABLE items ADD COLUMN IF NOT EXISTS note VARCHAR;
ALTER TABLE items ADD COLUMN NAME VARCHAR;
-- IO Error: Airport @ grpc://127.0.0.1:50051/: add_column: reading result Flight returned already exists error, with message: column 'NAME' already exists
ALTER TABLE items RENAME COLUMN note TO remark;
UPDATE items SET remark = 'bright' WHERE id = 1 RETURNING id, remark;
-- id | remark
-- 1 | bright
ALTER TABLE items DROP COLUMN remark;
SELECT * FROM items ORDER BY id;
-- id | name | price
-- 1 | lamp | 19.95
-- 2 | desk | 199.00
ALTER TABLE items DROP COLUMN nothing;
-- IO Error: Airport @ grpc://127.0.0.1:50051/: remove_column: reading result column 'nothing' does not exist
ALTER TABLE items DROP COLUMN IF EXISTS nothing;
ALTER TABLE items ADD COLUMN remark VARCHAR;
SELECT id, remark FROM items ORDER BY id;
-- id | remark
-- 1 | NULL
-- 2 | NULL

-- Wider types.

ALTER TABLE items ADD COLUMN pieces INTEGER;
UPDATE items SET pieces = 7;
ALTER TABLE items ALTER COLUMN pieces SET DATA TYPE BIGINT;
UPDATE items SET pieces = 5000000000 WHERE id = 2;
SELECT id, pieces FROM items ORDER BY id;
-- id | pieces
-- 1 | 7
-- 2 | 5000000000
ALTER TABLE items ALTER price TYPE DECIMAL(12, 2);
SELECT typeof(price) AS type FROM items LIMIT 1;
-- type
-- DECIMAL(12,2)

-- only with a server: types are widened only
ALTER TABLE items ALTER COLUMN pieces TYPE VARCHAR;
-- IO Error: Airport @ grpc://127.0.0.1:50051/: change_column_type: reading result Flight returned unimplemented error, with message: column 'pieces' cannot change from int64 to string; possible are integers to wider integers, FLOAT to DOUBLE, DECIMAL to more digits before the point
ALTER TABLE items ALTER COLUMN pieces TYPE INTEGER;
-- IO Error: Airport @ grpc://127.0.0.1:50051/: change_column_type: reading result Flight returned unimplemented error, with message: column 'pieces' cannot change from int64 to int32; possible are integers to wider integers, FLOAT to DOUBLE, DECIMAL to more digits before the point

-- NOT NULL.

ALTER TABLE items ALTER COLUMN name SET NOT NULL;
INSERT INTO items (id) VALUES (3);
-- Constraint Error: NOT NULL constraint failed: items.name
ALTER TABLE items ALTER COLUMN name DROP NOT NULL;
INSERT INTO items (id) VALUES (3);
ALTER TABLE items ALTER COLUMN name SET NOT NULL;
-- IO Error: Airport @ grpc://127.0.0.1:50051/: set_not_null: reading result column 'name' has NULL values: it cannot be NOT NULL
DELETE FROM items WHERE id = 3;

-- Defaults: ALTER COLUMN … SET DEFAULT reaches the server. DEFAULT in CREATE TABLE and ADD COLUMN does not.

ALTER TABLE items ALTER COLUMN remark SET DEFAULT 'none';
INSERT INTO items (id, name) VALUES (4, 'sofa') RETURNING id, remark;
-- id | remark
-- 4 | none
INSERT INTO items (id, name, remark) VALUES (5, 'rug', DEFAULT) RETURNING id, remark;
-- id | remark
-- 5 | none
ALTER TABLE items ALTER COLUMN remark SET DEFAULT NULL;
INSERT INTO items (id, name) VALUES (6, 'mat') RETURNING id, remark;
-- id | remark
-- 6 | NULL

-- only with a server: the client does not send this DEFAULT
CREATE TABLE plain (id INTEGER, state VARCHAR DEFAULT 'new');
INSERT INTO plain (id) VALUES (1) RETURNING *;
-- id | state
-- 1 | NULL
ALTER TABLE plain ADD COLUMN more INTEGER DEFAULT 5;
SELECT * FROM plain;
-- id | state | more
-- 1 | NULL | NULL
ALTER TABLE plain ALTER COLUMN more SET DEFAULT 5;
UPDATE plain SET more = 5 WHERE more IS NULL RETURNING id, more;
-- id | more
-- 1 | 5
INSERT INTO plain (id) VALUES (2) RETURNING *;
-- id | state | more
-- 2 | NULL | 5
DROP TABLE plain;
CREATE TABLE computed (a INTEGER, b INTEGER GENERATED ALWAYS AS (a + 1));
INSERT INTO computed (a) VALUES (1) RETURNING *;
-- a | b
-- 1 | NULL
DROP TABLE computed;

-- CHECK.

INSERT INTO items (id, name) VALUES (-1, 'nothing');
-- Constraint Error: CHECK constraint failed on table items with expression: CHECK((id > 0))
UPDATE items SET id = 0 WHERE id = 1;
-- Constraint Error: CHECK constraint failed on table items with expression: (id > 0)
SELECT count(*) AS n FROM items;
-- n
-- 5

-- Structs: fields are renamed and dropped.

CREATE TABLE places (id INTEGER, address STRUCT(street VARCHAR, town VARCHAR, zip VARCHAR));
INSERT INTO places VALUES (1, {'street': 'High St', 'town': 'Ely', 'zip': 'CB7'});
ALTER TABLE places RENAME COLUMN address.town TO city;
SELECT address.city FROM places;
-- city
-- Ely
ALTER TABLE places DROP COLUMN address.zip;
SELECT * FROM places;
-- id | address
-- 1 | {'street': High St, 'city': Ely}

-- only with a server: the client does not send the name of the new field
ALTER TABLE places ADD COLUMN address.country VARCHAR;
-- IO Error: Airport @ grpc://127.0.0.1:50051/: add_field: reading result Flight returned unimplemented error, with message: DuckDB's client does not send the name of a field that is added to 'address': add it with the Python client

-- Tables.

ALTER TABLE items RENAME TO goods;
SELECT count(*) AS n FROM goods;
-- n
-- 5
SELECT count(*) AS n FROM items;
-- Catalog Error: Table with name items does not exist!
CREATE TABLE dear AS SELECT id, name, price FROM goods WHERE price > 100;
SELECT * FROM dear;
-- id | name | price
-- 2 | desk | 199.00
DROP TABLE dear;
DROP TABLE dear;
-- Catalog Error: Table with name dear does not exist!
DROP TABLE IF EXISTS dear;

-- only with a server: its tables cannot be referred to
CREATE TABLE referring (id INTEGER REFERENCES goods (id));
-- Binder Error: Failed to create foreign key: there is no primary key or unique constraint for referenced table "goods"

-- A schema goes with all that is in it.

USE memory;
DROP SCHEMA lake.shop CASCADE;
SELECT * FROM lake.shop.goods;
-- Catalog Error: Table with name "shop.goods" does not exist because schema "shop" does not exist.
