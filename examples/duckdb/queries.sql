-- Ordinary SQL over the server's tables: DuckDB does the work, the server sends the columns and rows that are asked for.

-- DuckDB 1.5 takes scans of two such tables with the same columns for one in some queries, unless told so:

SET disabled_optimizers = 'common_subplan';
CREATE SCHEMA lake.sales;
USE lake.sales;
CREATE TABLE customers AS SELECT i AS id, 'customer ' || i AS name, ['Oslo', 'Porto', 'Riga'][i % 3 + 1] AS city FROM range(1, 31) t(i);
CREATE TABLE orders AS SELECT i AS id, i % 30 + 1 AS customer_id, (i % 50)::DECIMAL(8, 2) AS total, DATE '2024-01-01' + (i % 100)::INTEGER AS day FROM range(1000) t(i);
CREATE TABLE january (amount INTEGER);
CREATE TABLE february (amount INTEGER);
INSERT INTO january VALUES (1), (2);
INSERT INTO february VALUES (10), (20);

-- Two tables with the same columns.

SELECT (SELECT sum(amount) FROM january) AS january, (SELECT sum(amount) FROM february) AS february;
-- january | february
-- 3 | 30
SELECT 'january' AS month, sum(amount) AS total FROM january UNION ALL SELECT 'february', sum(amount) FROM february ORDER BY total;
-- month | total
-- january | 3
-- february | 30
SELECT * FROM january UNION ALL SELECT * FROM february ORDER BY amount;
-- amount
-- 1
-- 2
-- 10
-- 20
SELECT j.amount, f.amount AS other FROM january j, february f ORDER BY ALL;
-- amount | other
-- 1 | 10
-- 1 | 20
-- 2 | 10
-- 2 | 20

-- Aggregates.

SELECT count(*) AS n, min(total) AS least, max(total) AS most, avg(total) AS average FROM orders;
-- n | least | most | average
-- 1000 | 0.00 | 49.00 | 24.5
SELECT city, count(*) AS n FROM customers GROUP BY city ORDER BY city;
-- city | n
-- Oslo | 10
-- Porto | 10
-- Riga | 10
SELECT customer_id, sum(total) AS spent FROM orders GROUP BY ALL HAVING spent > 850 ORDER BY spent DESC, customer_id;
-- customer_id | spent
-- 10 | 986.00
-- 20 | 967.00
-- 9 | 952.00
-- 30 | 947.00
-- 19 | 934.00
-- 8 | 918.00
-- 29 | 914.00
-- 18 | 901.00
-- 7 | 884.00
-- 28 | 881.00
-- 17 | 868.00
SELECT city, year(day) AS year, sum(total) AS spent FROM orders JOIN customers c ON customer_id = c.id GROUP BY ROLLUP (city, year) ORDER BY city NULLS LAST, year NULLS LAST;
-- city | year | spent
-- Oslo | 2024 | 8150.00
-- Oslo | NULL | 8150.00
-- Porto | 2024 | 8183.00
-- Porto | NULL | 8183.00
-- Riga | 2024 | 8167.00
-- Riga | NULL | 8167.00
-- NULL | NULL | 24500.00
SELECT count(DISTINCT customer_id) AS customers, median(total) AS middle FROM orders;
-- customers | middle
-- 30 | 24.50
SELECT list(name ORDER BY id) AS names FROM customers WHERE id <= 3;
-- names
-- [customer 1, customer 2, customer 3]
SELECT string_agg(city, ', ' ORDER BY city) AS cities FROM (SELECT DISTINCT city FROM customers);
-- cities
-- Oslo, Porto, Riga
SELECT max_by(id, total) AS best FROM orders WHERE id < 50;
-- best
-- 49

-- Joins.

SELECT c.name, count(o.id) AS n FROM customers c LEFT JOIN orders o ON o.customer_id = c.id AND o.total > 48 GROUP BY c.name HAVING n > 3 ORDER BY ALL LIMIT 3;
-- name | n
-- customer 10 | 7
-- customer 20 | 7
-- customer 30 | 6
SELECT count(*) AS n FROM orders o JOIN customers c ON o.customer_id = c.id WHERE c.city = 'Riga';
-- n
-- 333
SELECT count(*) AS n FROM customers WHERE id NOT IN (SELECT customer_id FROM orders WHERE total > 48);
-- n
-- 27
SELECT count(*) AS n FROM customers c WHERE EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = c.id AND o.total = 7);
-- n
-- 3
SELECT c.name, o.total FROM customers c, LATERAL (SELECT total FROM orders o WHERE o.customer_id = c.id ORDER BY total DESC, id LIMIT 1) o WHERE c.id < 4 ORDER BY c.id;
-- name | total
-- customer 1 | 40.00
-- customer 2 | 41.00
-- customer 3 | 42.00
SELECT a.id, b.id AS next FROM customers a JOIN customers b ON b.id = a.id + 1 WHERE a.id < 3 ORDER BY a.id;
-- id | next
-- 1 | 2
-- 2 | 3
SELECT o.id, j.amount FROM orders o ASOF JOIN january j ON o.total >= j.amount WHERE o.id < 4 ORDER BY o.id;
-- id | amount
-- 1 | 1
-- 2 | 2
-- 3 | 2
SELECT count(*) AS n FROM customers SEMI JOIN orders ON customers.id = orders.customer_id;
-- n
-- 30
SELECT count(*) AS n FROM customers ANTI JOIN orders ON customers.id = orders.customer_id;
-- n
-- 0

-- Windows.

SELECT id, total, sum(total) OVER (ORDER BY id) AS running FROM orders WHERE id < 4 ORDER BY id;
-- id | total | running
-- 0 | 0.00 | 0.00
-- 1 | 1.00 | 1.00
-- 2 | 2.00 | 3.00
-- 3 | 3.00 | 6.00
SELECT id, rank() OVER (PARTITION BY customer_id ORDER BY total DESC, id) AS place FROM orders WHERE customer_id = 1 QUALIFY place <= 2 ORDER BY place;
-- id | place
-- 90 | 1
-- 240 | 2
SELECT id, lag(id) OVER (ORDER BY id) AS before FROM customers WHERE id < 3 ORDER BY id;
-- id | before
-- 1 | NULL
-- 2 | 1

-- Common table expressions and set operations.

WITH dear AS (SELECT * FROM orders WHERE total > 45) SELECT count(*) AS n FROM dear;
-- n
-- 80
WITH RECURSIVE chain(n) AS (SELECT min(id) FROM customers UNION ALL SELECT n + 1 FROM chain WHERE n < 3) SELECT n FROM chain ORDER BY n;
-- n
-- 1
-- 2
-- 3
SELECT id FROM customers WHERE id < 5 INTERSECT SELECT customer_id FROM orders WHERE total = 1 ORDER BY id;
-- id
-- 2
SELECT id FROM customers EXCEPT SELECT customer_id FROM orders WHERE id < 28 ORDER BY id;
-- id
-- 29
-- 30
PIVOT (SELECT city, id % 2 AS odd FROM customers) ON odd USING count(*) ORDER BY city;
-- city | 0 | 1
-- Oslo | 5 | 5
-- Porto | 5 | 5
-- Riga | 5 | 5
SELECT * FROM customers USING SAMPLE 100 PERCENT (bernoulli) ORDER BY id LIMIT 1;
-- id | name | city
-- 1 | customer 1 | Porto
SELECT * EXCLUDE (city) FROM customers ORDER BY id LIMIT 2;
-- id | name
-- 1 | customer 1
-- 2 | customer 2
SELECT COLUMNS('.*id') FROM orders WHERE id = 5;
-- id | customer_id
-- 5 | 6

-- Views and macros live in DuckDB, over the server's tables.

CREATE VIEW memory.main.riga AS SELECT * FROM lake.sales.customers WHERE city = 'Riga';
SELECT count(*) AS n FROM memory.main.riga;
-- n
-- 10
CREATE MACRO memory.main.spent(c) AS (SELECT sum(total) FROM lake.sales.orders WHERE customer_id = c);
SELECT memory.main.spent(1) AS spent;
-- spent
-- 680.00
PREPARE by_city AS SELECT count(*) AS n FROM customers WHERE city = $1;
EXECUTE by_city('Oslo');
-- n
-- 10
EXECUTE by_city('Porto');
-- n
-- 10

-- Copies, both ways.

CREATE TABLE riga AS SELECT * FROM customers WHERE city = 'Riga';
SELECT count(*) AS n FROM riga;
-- n
-- 10
CREATE TABLE empty AS FROM orders LIMIT 0;
SELECT count(*) AS n FROM empty;
-- n
-- 0
COPY (FROM customers WHERE id < 3 ORDER BY id) TO '/dev/null' (FORMAT csv);
USE memory;
DROP VIEW memory.main.riga;
DROP SCHEMA lake.sales CASCADE;
