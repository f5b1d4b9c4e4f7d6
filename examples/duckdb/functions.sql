-- The functions of examples/functions.py, served as the catalog tools.

-- only with a server: functions written in Python
SELECT tools.public.with_tax(100.0, 0.19) AS price;
-- price
-- 119.0
SELECT tools.public.with_tax(NULL, 0.19) AS price;
-- price
-- NULL
SELECT i, tools.public.with_tax(i::DOUBLE, 0.5) AS price FROM range(3) t(i) ORDER BY i;
-- i | price
-- 0 | 0.0
-- 1 | 1.5
-- 2 | 3.0
SELECT count(*) AS n, sum(tools.public.with_tax(i::DOUBLE, 0.0)) AS total FROM range(10000) t(i);
-- n | total
-- 10000 | 49995000.0
SELECT i FROM range(5) t(i) WHERE tools.public.with_tax(i::DOUBLE, 1.0) > 5 ORDER BY i;
-- i
-- 3
-- 4
SELECT tools.public.with_tax('abc', 0.19);
-- Conversion Error: Could not convert string 'abc' to DOUBLE
SELECT tools.public.with_tax(1.0);
-- Binder Error: No function matches the given name and argument types 'tools.public.with_tax(DECIMAL(2,1))'. You might need to add explicit type casts.
SELECT * FROM tools.public.countdown(3);
-- n
-- 3
-- 2
-- 1
SELECT * FROM tools.public.countdown(5, step = 2);
-- n
-- 5
-- 3
-- 1
SELECT sum(n) AS total, count(*) AS n FROM tools.public.countdown(25000);
-- total | n
-- 312512500 | 25000
SELECT n FROM tools.public.countdown(1000000000) LIMIT 2;
-- n
-- 1000000000
-- 999999999
SELECT n FROM tools.public.countdown(10) WHERE n % 2 = 0 ORDER BY n;
-- n
-- 2
-- 4
-- 6
-- 8
-- 10
SELECT * FROM tools.public.countdown(5, step = 0);
-- Invalid Input Error: step must be at least 1
SELECT a.n, b.n AS m FROM tools.public.countdown(2) a, tools.public.countdown(2) b ORDER BY ALL;
-- n | m
-- 1 | 1
-- 1 | 2
-- 2 | 1
-- 2 | 2
SELECT * FROM tools.public.running_total((SELECT i FROM range(1, 5) t(i)));
-- total
-- 1.0
-- 3.0
-- 6.0
-- 10.0
SELECT max(total) AS total FROM tools.public.running_total((SELECT i::DOUBLE FROM range(10000) t(i)));
-- total
-- 49995000.0
SELECT * FROM tools.public.unknown(1);
-- Catalog Error: Table Function with name unknown does not exist!

-- With tables of the server and of DuckDB.

-- only with a server: functions written in Python
CREATE TABLE lake.public.prices AS SELECT i AS id, i * 10.0::DOUBLE AS price FROM range(1, 4) t(i);
SELECT id, tools.public.with_tax(price, 0.5) AS gross FROM lake.public.prices ORDER BY id;
-- id | gross
-- 1 | 15.0
-- 2 | 30.0
-- 3 | 45.0
UPDATE lake.public.prices SET price = tools.public.with_tax(price, 1.0) WHERE id > 1 RETURNING id, price;
-- id | price
-- 2 | 40.0
-- 3 | 60.0
SELECT * FROM tools.public.running_total((SELECT price FROM lake.public.prices ORDER BY id));
-- total
-- 10.0
-- 50.0
-- 110.0
DROP TABLE lake.public.prices;

-- Where they are listed.

-- only with a server: functions written in Python
SELECT function_name, function_type FROM duckdb_functions() WHERE database_name = 'tools' ORDER BY ALL;
-- function_name | function_type
-- countdown | table
-- running_total | table
-- with_tax | scalar
