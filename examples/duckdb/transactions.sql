-- DuckDB's client never sends COMMIT or ROLLBACK. lake.tx has functions that the server does get.

CREATE SCHEMA lake.bank;
CREATE TABLE lake.bank.accounts (id INTEGER NOT NULL, owner VARCHAR, balance DECIMAL(12, 2), CHECK (balance >= 0));
CREATE TABLE lake.bank.transfers (source INTEGER, target INTEGER, amount DECIMAL(12, 2));
INSERT INTO lake.bank.accounts VALUES (1, 'Ada', 100), (2, 'Grace', 50);

-- Outside BEGIN each statement commits by itself.

UPDATE lake.bank.accounts SET balance = balance + 1 WHERE id = 2;
SELECT id, balance FROM lake.bank.accounts ORDER BY id;
-- id | balance
-- 1 | 100.00
-- 2 | 51.00

-- Two tables at one instant. tx.begin() gives the id of the transaction.

-- only with a server: the functions of tx
BEGIN;
SELECT lake.tx.begin() <> '' AS begun;
-- begun
-- true
UPDATE lake.bank.accounts SET balance = balance - 30 WHERE id = 1;
UPDATE lake.bank.accounts SET balance = balance + 30 WHERE id = 2;
INSERT INTO lake.bank.transfers VALUES (1, 2, 30) RETURNING amount;
-- amount
-- 30.00
SELECT id, balance FROM lake.bank.accounts ORDER BY id;
-- id | balance
-- 1 | 70.00
-- 2 | 81.00
SELECT lake.tx.commit();
-- lake.tx."commit"()
-- committed
COMMIT;
SELECT id, balance FROM lake.bank.accounts ORDER BY id;
-- id | balance
-- 1 | 70.00
-- 2 | 81.00
SELECT * FROM lake.bank.transfers;
-- source | target | amount
-- 1 | 2 | 30.00

-- tx.rollback() undoes all of it.

-- only with a server: the functions of tx
BEGIN;
SELECT lake.tx.begin() <> '' AS begun;
-- begun
-- true
DELETE FROM lake.bank.accounts;
INSERT INTO lake.bank.transfers VALUES (2, 1, 999);
SELECT count(*) AS accounts FROM lake.bank.accounts;
-- accounts
-- 0
SELECT count(*) AS transfers FROM lake.bank.transfers;
-- transfers
-- 2
SELECT lake.tx.rollback();
-- lake.tx."rollback"()
-- aborted
COMMIT;
SELECT count(*) AS accounts FROM lake.bank.accounts;
-- accounts
-- 2
SELECT count(*) AS transfers FROM lake.bank.transfers;
-- transfers
-- 1

-- ROLLBACK alone undoes nothing: the statement was committed when it ended.

-- only with a server: DuckDB's own tables do roll back
BEGIN;
INSERT INTO lake.bank.transfers VALUES (1, 2, 1);
ROLLBACK;
SELECT count(*) AS transfers FROM lake.bank.transfers;
-- transfers
-- 2

-- Without tx.commit() nothing of a transaction that tx.begin() began is ever seen.

-- only with a server: the functions of tx
BEGIN;
SELECT lake.tx.begin() <> '' AS begun;
-- begun
-- true
INSERT INTO lake.bank.transfers VALUES (2, 1, 7);
COMMIT;
SELECT count(*) AS transfers FROM lake.bank.transfers;
-- transfers
-- 2

-- A statement that fails ends its transaction: nothing of it is kept.

-- only with a server: the functions of tx
BEGIN;
SELECT lake.tx.begin() <> '' AS begun;
-- begun
-- true
UPDATE lake.bank.accounts SET balance = balance + 5 WHERE id = 2;
UPDATE lake.bank.accounts SET balance = balance - 5000 WHERE id = 1;
-- Constraint Error: CHECK constraint failed on table accounts with expression: (balance >= 0)
SELECT lake.tx.commit();
-- TransactionContext Error: Current transaction is aborted (please ROLLBACK)
ROLLBACK;
SELECT id, balance FROM lake.bank.accounts ORDER BY id;
-- id | balance
-- 1 | 70.00
-- 2 | 81.00

-- tx.begin() comes before the first change, and inside BEGIN.

-- only with a server: the functions of tx
BEGIN;
INSERT INTO lake.bank.transfers VALUES (1, 2, 2);
SELECT lake.tx.begin();
-- IO Error: Airport @ grpc://127.0.0.1:50051/lake/tx/scalar_function/begin: FlightReader::Next gRPC returned precondition failed error, with message: transaction '…' has written already: it cannot be deferred.
ROLLBACK;

-- An upsert: the client sends neither MERGE INTO nor ON CONFLICT.

CREATE TEMP TABLE arrivals AS SELECT * FROM (VALUES (2, 'Grace', 500.00), (3, 'Edsger', 7.00)) t(id, owner, balance);

-- only with a server: the functions of tx
BEGIN;
SELECT lake.tx.begin() <> '' AS begun;
-- begun
-- true
UPDATE lake.bank.accounts SET balance = a.balance FROM arrivals a WHERE accounts.id = a.id;
INSERT INTO lake.bank.accounts SELECT * FROM arrivals a WHERE NOT EXISTS (FROM lake.bank.accounts s WHERE s.id = a.id);
SELECT lake.tx.commit();
-- lake.tx."commit"()
-- committed
COMMIT;
SELECT * FROM lake.bank.accounts ORDER BY id;
-- id | owner | balance
-- 1 | Ada | 70.00
-- 2 | Grace | 500.00
-- 3 | Edsger | 7.00

-- What is open at the moment, and how a transaction stands.

-- only with a server: the functions of tx
BEGIN;
SELECT lake.tx.begin() <> '' AS begun;
-- begun
-- true
SELECT lake.tx.status();
-- lake.tx.status()
-- active
SELECT count(*) AS open FROM lake.tx.transactions;
-- open
-- 2
SELECT lake.tx.rollback();
-- lake.tx."rollback"()
-- aborted
SELECT lake.tx.status();
-- lake.tx.status()
-- aborted
COMMIT;

-- DDL is never part of a transaction.

-- only with a server: DuckDB's own tables do roll back
BEGIN;
CREATE TABLE lake.bank.notes (note VARCHAR);
ROLLBACK;
INSERT INTO lake.bank.notes VALUES ('still there') RETURNING note;
-- note
-- still there
DROP SCHEMA lake.bank CASCADE;
