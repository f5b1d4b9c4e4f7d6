-- Looking around: what is attached, which schemas and tables there are, and what they are made of.

CREATE SCHEMA lake.office;
CREATE TABLE lake.office.orders (id BIGINT NOT NULL, customer VARCHAR, total DECIMAL(12, 2), CHECK (total >= 0));
CREATE TABLE lake.office.customers (name VARCHAR, city VARCHAR);
ALTER TABLE lake.office.customers ALTER COLUMN city SET DEFAULT 'Oslo';
INSERT INTO lake.office.orders VALUES (1, 'Ada', 10), (2, 'Grace', NULL);

SELECT database_name FROM duckdb_databases() WHERE database_name = 'lake';
-- database_name
-- lake

-- only with a server: these are its own schemas
SELECT schema_name FROM duckdb_schemas() WHERE database_name = 'lake' AND schema_name <> 'spark' ORDER BY ALL;
-- schema_name
-- history
-- office
-- public
-- rows
-- tx

SELECT schema_name, table_name, column_count FROM duckdb_tables() WHERE database_name = 'lake' AND schema_name = 'office' ORDER BY ALL;
-- schema_name | table_name | column_count
-- office | customers | 2
-- office | orders | 3
SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns() WHERE database_name = 'lake' AND schema_name = 'office' ORDER BY table_name, column_index;
-- table_name | column_name | data_type | is_nullable
-- customers | name | VARCHAR | true
-- customers | city | VARCHAR | true
-- orders | id | BIGINT | false
-- orders | customer | VARCHAR | true
-- orders | total | DECIMAL(12,2) | true
SELECT table_name FROM information_schema.tables WHERE table_catalog = 'lake' AND table_schema = 'office' ORDER BY ALL;
-- table_name
-- customers
-- orders
SELECT column_name, data_type, is_nullable FROM information_schema.columns WHERE table_catalog = 'lake' AND table_name = 'orders' ORDER BY ordinal_position;
-- column_name | data_type | is_nullable
-- id | BIGINT | NO
-- customer | VARCHAR | YES
-- total | DECIMAL(12,2) | YES
SELECT column_name, column_default FROM information_schema.columns WHERE table_catalog = 'lake' AND table_name = 'customers' ORDER BY ordinal_position;
-- column_name | column_default
-- name | NULL
-- city | 'Oslo'
SHOW TABLES FROM lake.office;
-- name
-- customers
-- orders
DESCRIBE lake.office.orders;
-- column_name | column_type | null | key | default | extra
-- id | BIGINT | NO | NULL | NULL | NULL
-- customer | VARCHAR | YES | NULL | NULL | NULL
-- total | DECIMAL(12,2) | YES | NULL | NULL | NULL
DESCRIBE SELECT total * 2 AS twice FROM lake.office.orders;
-- column_name | column_type | null | key | default | extra
-- twice | DECIMAL(18,2) | YES | NULL | NULL | NULL
SELECT column_name, column_type, min, max, null_percentage FROM (SUMMARIZE lake.office.orders);
-- column_name | column_type | min | max | null_percentage
-- id | BIGINT | 1 | 2 | 0.00
-- customer | VARCHAR | Ada | Grace | 0.00
-- total | DECIMAL(12,2) | 10.00 | 10.00 | 50.00

-- USE makes names shorter. USE lake alone does not work: say the schema.

USE lake.office;
SELECT current_schema() AS schema, current_database() AS catalog;
-- schema | catalog
-- office | lake
SHOW TABLES;
-- name
-- customers
-- orders
FROM orders ORDER BY id;
-- id | customer | total
-- 1 | Ada | 10.00
-- 2 | Grace | NULL
TABLE orders ORDER BY id;
-- id | customer | total
-- 1 | Ada | 10.00
-- 2 | Grace | NULL

-- only with a server: there the name main means no schema
USE lake;
-- Catalog Error: SET schema: No catalog + schema named "lake" found.

-- What others create is seen at the next statement, without attaching again.

CREATE TABLE lake.office.late (n INTEGER);
SELECT count(*) AS tables FROM duckdb_tables() WHERE database_name = 'lake' AND schema_name = 'office';
-- tables
-- 3
DROP TABLE late;
SELECT count(*) AS tables FROM duckdb_tables() WHERE database_name = 'lake' AND schema_name = 'office';
-- tables
-- 2

-- Detach.

USE memory;
DROP SCHEMA lake.office CASCADE;
DETACH lake;
SELECT count(*) AS attached FROM duckdb_databases() WHERE database_name = 'lake';
-- attached
-- 0

-- only with a server: later versions of DuckDB say it otherwise
SELECT * FROM lake.public.users;
-- Binder Error: Catalog "lake" does not exist!
