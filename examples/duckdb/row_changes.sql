-- INSERT, UPDATE and DELETE. Each statement is one commit, whole or not at all.

CREATE SCHEMA lake.changes;
USE lake.changes;
CREATE TABLE products (id INTEGER NOT NULL, name VARCHAR, price DECIMAL(8, 2), stock INTEGER);

-- INSERT.

INSERT INTO products VALUES (1, 'chair', 49.90, 10);
INSERT INTO products VALUES (2, 'desk', 199.00, 3), (3, 'lamp', 19.95, 40);
INSERT INTO products (id, name) VALUES (4, 'shelf');
INSERT INTO products (stock, price, name, id) VALUES (7, 5.5, 'stool', 5);
INSERT INTO products BY NAME SELECT 'table' AS name, 6 AS id;
SELECT * FROM products ORDER BY id;
-- id | name | price | stock
-- 1 | chair | 49.90 | 10
-- 2 | desk | 199.00 | 3
-- 3 | lamp | 19.95 | 40
-- 4 | shelf | NULL | NULL
-- 5 | stool | 5.50 | 7
-- 6 | table | NULL | NULL
INSERT INTO products SELECT id + 10, upper(name), price * 2, stock FROM products WHERE price IS NOT NULL;
SELECT id, name, price FROM products WHERE id > 10 ORDER BY id;
-- id | name | price
-- 11 | CHAIR | 99.80
-- 12 | DESK | 398.00
-- 13 | LAMP | 39.90
-- 15 | STOOL | 11.00

-- RETURNING gives back what was stored.

INSERT INTO products VALUES (20, 'rug', 80, 1) RETURNING *;
-- id | name | price | stock
-- 20 | rug | 80.00 | 1
INSERT INTO products VALUES (21, 'mat', 8, 1), (22, 'mug', 4, 9) RETURNING id, name || '!' AS shout, price * stock AS worth;
-- id | shout | worth
-- 21 | mat! | 8.00
-- 22 | mug! | 36.00
INSERT INTO products (id) VALUES (23) RETURNING name IS NULL AS no_name;
-- no_name
-- true

-- UPDATE.

UPDATE products SET price = 59.90 WHERE id = 1;
SELECT price FROM products WHERE id = 1;
-- price
-- 59.90
UPDATE products SET price = price * 1.10, stock = stock - 1 WHERE stock > 5;
SELECT id, price, stock FROM products WHERE id IN (1, 3, 5) ORDER BY id;
-- id | price | stock
-- 1 | 65.89 | 9
-- 3 | 21.95 | 39
-- 5 | 6.05 | 6
UPDATE products SET name = upper(name) WHERE id = 2 RETURNING id, name;
-- id | name
-- 2 | DESK
UPDATE products SET stock = 100, name = 'armchair' WHERE id = 1 RETURNING name, stock, id;
-- name | stock | id
-- armchair | 100 | 1
UPDATE products SET stock = 0 WHERE stock IS NULL RETURNING id;
-- id
-- 4
-- 6
-- 23
UPDATE products SET price = NULL WHERE id = 22 RETURNING *;
-- id | name | price | stock
-- 22 | mug | NULL | 8
UPDATE products SET stock = 5 WHERE id = 999 RETURNING *;
-- id | name | price | stock
UPDATE products p SET price = n.price FROM (VALUES (2, 150.00), (3, 25.00)) n(id, price) WHERE p.id = n.id;
SELECT id, price FROM products WHERE id IN (2, 3) ORDER BY id;
-- id | price
-- 2 | 150.00
-- 3 | 25.00
UPDATE products SET price = (SELECT max(price) FROM products) WHERE id = 4 RETURNING id, price;
-- id | price
-- 4 | 398.00

-- DELETE.

DELETE FROM products WHERE id = 23;
DELETE FROM products WHERE id BETWEEN 20 AND 22 RETURNING id, name;
-- id | name
-- 20 | rug
-- 21 | mat
-- 22 | mug
DELETE FROM products WHERE id = 999 RETURNING *;
-- id | name | price | stock
DELETE FROM products USING (VALUES (11), (12)) gone(id) WHERE products.id = gone.id;
DELETE FROM products WHERE id IN (SELECT id FROM products WHERE name = 'LAMP');
SELECT id, name FROM products ORDER BY id;
-- id | name
-- 1 | armchair
-- 2 | DESK
-- 3 | lamp
-- 4 | shelf
-- 5 | stool
-- 6 | table
-- 15 | STOOL

-- An upsert in two statements: the client does not send ON CONFLICT or MERGE INTO.

CREATE TEMP TABLE arrivals AS SELECT * FROM (VALUES (1, 'armchair', 12), (7, 'sofa', 2)) t(id, name, stock);
UPDATE products SET stock = products.stock + a.stock FROM arrivals a WHERE products.id = a.id;
INSERT INTO products (id, name, stock) SELECT id, name, stock FROM arrivals a WHERE NOT EXISTS (SELECT 1 FROM products p WHERE p.id = a.id);
SELECT id, name, stock FROM products WHERE id IN (1, 7) ORDER BY id;
-- id | name | stock
-- 1 | armchair | 112
-- 7 | sofa | 2

-- Many rows at once.

CREATE TABLE numbers (n BIGINT, square BIGINT);
INSERT INTO numbers SELECT i, i * i FROM range(20000) t(i);
SELECT count(*) AS n, sum(square) AS squares FROM numbers;
-- n | squares
-- 20000 | 2666466670000
UPDATE numbers SET square = 0 WHERE n % 2 = 1;
SELECT sum(square) AS squares FROM numbers;
-- squares
-- 1333133340000
DELETE FROM numbers WHERE square = 0;
SELECT count(*) AS n, min(n) AS first, max(n) AS last FROM numbers;
-- n | first | last
-- 9999 | 2 | 19998
TRUNCATE numbers;
SELECT count(*) AS n FROM numbers;
-- n
-- 0

-- DuckDB's own tables and the server's in one statement.

CREATE TABLE memory.main.here AS SELECT id, name FROM products WHERE id < 4;
INSERT INTO products (id, name) SELECT id + 30, name FROM memory.main.here;
SELECT id, name FROM products WHERE id > 30 ORDER BY id;
-- id | name
-- 31 | armchair
-- 32 | DESK
-- 33 | lamp
SELECT h.name, p.stock FROM memory.main.here h JOIN products p USING (id) ORDER BY h.name;
-- name | stock
-- DESK | 3
-- armchair | 112
-- lamp | 39
USE memory;
DROP SCHEMA lake.changes CASCADE;
