-- Conditions go to the server, which reads less then; DuckDB applies them again. The answer is that of a table of DuckDB's own.

CREATE SCHEMA lake.filters;
USE lake.filters;
CREATE TABLE events AS
    SELECT i AS id, 'user' || (i % 10) AS name, DATE '2024-01-01' + (i % 366)::INTEGER AS day, (i * 1.25)::DECIMAL(12, 2) AS amount,
        CASE WHEN i % 7 = 0 THEN NULL ELSE i % 5 END AS kind
    FROM range(10000) t(i);

SELECT count(*) AS n FROM events;
-- n
-- 10000
SELECT * FROM events WHERE id = 4711;
-- id | name | day | amount | kind
-- 4711 | user1 | 2024-11-15 | 5888.75 | NULL
SELECT count(*) AS n FROM events WHERE id < 10;
-- n
-- 10
SELECT count(*) AS n FROM events WHERE id >= 9990;
-- n
-- 10
SELECT count(*) AS n FROM events WHERE id BETWEEN 100 AND 199;
-- n
-- 100
SELECT count(*) AS n FROM events WHERE id NOT BETWEEN 100 AND 199;
-- n
-- 9900
SELECT count(*) AS n FROM events WHERE id <> 5;
-- n
-- 9999
SELECT id FROM events WHERE id IN (3, 1, 4, 1, 5, 9, 99999) ORDER BY id;
-- id
-- 1
-- 3
-- 4
-- 5
-- 9
SELECT count(*) AS n FROM events WHERE id NOT IN (1, 2, 3);
-- n
-- 9997
SELECT count(*) AS n FROM events WHERE kind IS NULL;
-- n
-- 1429
SELECT count(*) AS n FROM events WHERE kind IS NOT NULL;
-- n
-- 8571
SELECT count(*) AS n FROM events WHERE kind = NULL;
-- n
-- 0
SELECT count(*) AS n FROM events WHERE kind NOT IN (0, NULL);
-- n
-- 0
SELECT count(*) AS n FROM events WHERE kind IS DISTINCT FROM 1;
-- n
-- 8286
SELECT count(*) AS n FROM events WHERE kind IS NOT DISTINCT FROM NULL;
-- n
-- 1429
SELECT count(*) AS n FROM events WHERE kind = 1 OR kind IS NULL;
-- n
-- 3143
SELECT count(*) AS n FROM events WHERE NOT (kind = 1 OR id < 5000);
-- n
-- 3429
SELECT count(*) AS n FROM events WHERE name = 'user3';
-- n
-- 1000
SELECT count(*) AS n FROM events WHERE name = 'USER3';
-- n
-- 0
SELECT count(*) AS n FROM events WHERE lower(name) = 'user3';
-- n
-- 1000
SELECT count(*) AS n FROM events WHERE name LIKE 'user%';
-- n
-- 10000
SELECT count(*) AS n FROM events WHERE name LIKE '%9';
-- n
-- 1000
SELECT count(*) AS n FROM events WHERE name NOT LIKE '%9';
-- n
-- 9000
SELECT count(*) AS n FROM events WHERE name ILIKE 'USER_';
-- n
-- 10000
SELECT count(*) AS n FROM events WHERE starts_with(name, 'user1');
-- n
-- 1000
SELECT count(*) AS n FROM events WHERE contains(name, 'er2');
-- n
-- 1000
SELECT count(*) AS n FROM events WHERE length(name) > 5;
-- n
-- 0
SELECT count(*) AS n FROM events WHERE name SIMILAR TO 'user[0-4]';
-- n
-- 5000
SELECT count(*) AS n FROM events WHERE day = '2024-02-29';
-- n
-- 28
SELECT count(*) AS n FROM events WHERE day >= '2024-12-01';
-- n
-- 837
SELECT count(*) AS n FROM events WHERE month(day) = 2;
-- n
-- 812
SELECT count(*) AS n FROM events WHERE day < DATE '2024-01-01' + INTERVAL 7 DAYS;
-- n
-- 196
SELECT count(*) AS n FROM events WHERE amount = 12.50;
-- n
-- 1
SELECT count(*) AS n FROM events WHERE amount > 12000;
-- n
-- 399
SELECT id FROM events WHERE amount IN (1.25, 2.50, 3.00) ORDER BY id;
-- id
-- 1
-- 2
SELECT count(*) AS n FROM events WHERE id * 2 + 1 = 101;
-- n
-- 1
SELECT count(*) AS n FROM events WHERE id % 1000 = 0;
-- n
-- 10
SELECT count(*) AS n FROM events WHERE id::VARCHAR = '77';
-- n
-- 1
SELECT count(*) AS n FROM events WHERE CASE WHEN kind IS NULL THEN id ELSE kind END = 3;
-- n
-- 1715
SELECT count(*) AS n FROM events WHERE coalesce(kind, -1) = -1;
-- n
-- 1429
SELECT count(*) AS n FROM events WHERE true;
-- n
-- 10000
SELECT count(*) AS n FROM events WHERE false;
-- n
-- 0
SELECT count(*) AS n FROM events WHERE id = 1 AND id = 2;
-- n
-- 0
SELECT id FROM events WHERE id > 9000 AND kind = 3 AND name = 'user3' ORDER BY id LIMIT 3;
-- id
-- 9003
-- 9013
-- 9033
SELECT id FROM events WHERE id = (SELECT max(id) FROM events);
-- id
-- 9999
SELECT id, amount FROM events WHERE day = '2024-03-01' ORDER BY amount DESC LIMIT 2;
-- id | amount
-- 9942 | 12427.50
-- 9576 | 11970.00
SELECT id FROM events ORDER BY id LIMIT 3 OFFSET 9000;
-- id
-- 9000
-- 9001
-- 9002
SELECT count(*) AS n FROM events WHERE id IN (SELECT id FROM events WHERE kind = 2 AND id < 100);
-- n
-- 17

-- The row id can be asked for and compared, too; it stays with its row.

SELECT count(DISTINCT rowid) AS rows FROM events;
-- rows
-- 10000
SELECT count(*) AS n FROM events WHERE rowid = (SELECT rowid FROM events WHERE id = 4711);
-- n
-- 1
USE memory;
DROP SCHEMA lake.filters CASCADE;
