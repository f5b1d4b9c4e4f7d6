-- What goes wrong, as DuckDB shows it.

CREATE SCHEMA lake.faults;
CREATE TABLE lake.faults.users (id INTEGER NOT NULL, name VARCHAR, CHECK (id > 0));
INSERT INTO lake.faults.users VALUES (1, 'Ada');

-- Names that are not there.

SELECT * FROM lake.faults.nobody;
-- Catalog Error: Table with name nobody does not exist!
SELECT * FROM lake.nowhere.users;
-- Catalog Error: Table with name "nowhere.users" does not exist because schema "nowhere" does not exist.
SELECT nothing FROM lake.faults.users;
-- Binder Error: Referenced column "nothing" not found in FROM clause!
INSERT INTO lake.faults.nobody VALUES (1);
-- Catalog Error: Table with name nobody does not exist!
UPDATE lake.faults.users SET nothing = 1;
-- Binder Error: Referenced update column nothing not found in table!
DELETE FROM lake.faults.nobody;
-- Catalog Error: Table with name nobody does not exist!
DROP TABLE lake.faults.nobody;
-- Catalog Error: Table with name nobody does not exist!
DROP SCHEMA lake.nowhere;
-- IO Error: Airport @ grpc://127.0.0.1:50051/: Flight returned not found error, with message: schema 'nowhere' not found
ALTER TABLE lake.faults.nobody ADD COLUMN n INTEGER;
-- Catalog Error: Table with name nobody does not exist!
CREATE TABLE lake.nowhere.users (id INTEGER);
-- Catalog Error: Schema with name "nowhere" not found

-- only with a server: there two names mean the schema main, which is not
SELECT * FROM lake.users;
-- Catalog Error: Table with name "main.users" does not exist because schema "main" does not exist.

-- Constraints.

INSERT INTO lake.faults.users VALUES (NULL, 'nobody');
-- Constraint Error: NOT NULL constraint failed: users.id
INSERT INTO lake.faults.users VALUES (0, 'zero');
-- Constraint Error: CHECK constraint failed on table users with expression: CHECK((id > 0))
UPDATE lake.faults.users SET id = NULL;
-- Constraint Error: NOT NULL constraint failed: users.id
UPDATE lake.faults.users SET id = -1 WHERE id = 1;
-- Constraint Error: CHECK constraint failed on table users with expression: (id > 0)
INSERT INTO lake.faults.users VALUES (2, 'Grace'), (-2, 'not') RETURNING id;
-- Constraint Error: CHECK constraint failed on table users with expression: CHECK((id > 0))
SELECT * FROM lake.faults.users;
-- id | name
-- 1 | Ada

-- Values that do not fit.

INSERT INTO lake.faults.users VALUES ('one', 'Ada');
-- Conversion Error: Could not convert string 'one' to INT32
INSERT INTO lake.faults.users VALUES (3000000000, 'much');
-- Conversion Error: Type INT64 with value 3000000000 can't be cast because the value is out of range for the destination type INT32
INSERT INTO lake.faults.users VALUES (1);
-- Binder Error: table users has 2 columns but 1 values were supplied
INSERT INTO lake.faults.users (id, id) VALUES (1, 1);
-- Binder Error: Duplicate column name "id" in INSERT

-- Names that are taken or reserved.

CREATE TABLE lake.faults.users (id INTEGER);
-- IO Error: Airport @ grpc://127.0.0.1:50051/: create_table: reading result Flight returned already exists error, with message: table 'faults.users' already exists

-- only with a server: names that it needs itself
CREATE SCHEMA lake.tx;
-- IO Error: Airport @ grpc://127.0.0.1:50051/: create_schema: reading result schema name 'tx' is reserved
CREATE TABLE lake.faults.reserved (rowid INTEGER);
-- IO Error: Airport @ grpc://127.0.0.1:50051/: create_table: reading result column name 'rowid' is reserved
CREATE TABLE lake.faults.reserved (_row_id INTEGER);
-- IO Error: Airport @ grpc://127.0.0.1:50051/: create_table: reading result column name '_row_id' is reserved
DROP SCHEMA lake.tx;
-- IO Error: Airport @ grpc://127.0.0.1:50051/: Flight returned not found error, with message: schema 'tx' not found

-- A CHECK or a default that can never be right is refused when it is made.

-- only with a server: DuckDB binds these otherwise
CREATE TABLE lake.faults.broken (id INTEGER, CHECK (random_number(id)));
-- Catalog Error: Scalar Function with name random_number does not exist!
ALTER TABLE lake.faults.users ALTER COLUMN name SET DEFAULT unknown_function();
-- IO Error: Airport @ grpc://127.0.0.1:50051/: set_default: reading result column 'name': its default 'unknown_function()' cannot be used: the function unknown_function is not allowed in it
ALTER TABLE lake.faults.users DROP COLUMN id;
-- IO Error: Airport @ grpc://127.0.0.1:50051/: remove_column: reading result column 'id' is needed by CHECK (id > 0): DROP … CASCADE drops the check with it

-- What the client never sends.

-- only with a server: what DuckDB's own tables can
CREATE OR REPLACE TABLE lake.faults.users (id INTEGER);
-- Not implemented Error: REPLACE ON CONFLICT in CreateTable
CREATE VIEW lake.faults.names AS SELECT name FROM lake.faults.users;
-- Not implemented Error: AirportTableSet::RefreshTable
CREATE INDEX by_name ON lake.faults.users (name);
-- Not implemented Error: AirportCatalog BindCreateIndex
COMMENT ON TABLE lake.faults.users IS 'who';
-- Binder Error: Only altering tables is supported for now
INSERT INTO lake.faults.users VALUES (1, 'Ada') ON CONFLICT DO NOTHING;
-- Binder Error: There are no UNIQUE/PRIMARY KEY constraints that refer to this table, specify ON CONFLICT columns manually
INSERT OR REPLACE INTO lake.faults.users VALUES (1, 'Ada');
-- Binder Error: There are no UNIQUE/PRIMARY KEY constraints that refer to this table, specify ON CONFLICT columns manually
MERGE INTO lake.faults.users u USING (SELECT 1 AS id) s ON u.id = s.id WHEN MATCHED THEN DELETE;
-- Not implemented Error: Database type "airport" does not support MERGE INTO or ON CONFLICT
CREATE SEQUENCE lake.faults.numbers;
-- Binder Error: Airport databases do not support creating sequences
CREATE TYPE lake.faults.mood AS ENUM ('ok');
-- Binder Error: Airport databases do not support creating types
CREATE MACRO lake.faults.twice(x) AS x * 2;
-- Binder Error: Airport databases do not support creating functions

-- After all that the table is as it was.

SELECT * FROM lake.faults.users;
-- id | name
-- 1 | Ada
DROP SCHEMA lake.faults CASCADE;
