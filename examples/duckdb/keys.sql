-- No two rows share a key. Both engines look at it when a statement or a transaction ends; the server names key and values.

CREATE TABLE lake.public.users (id INTEGER PRIMARY KEY, mail VARCHAR UNIQUE, team INTEGER, seat INTEGER, UNIQUE (team, seat));
INSERT INTO lake.public.users VALUES (1, 'ada@x.org', 7, 1), (2, NULL, 7, NULL), (3, NULL, 7, NULL);
INSERT INTO lake.public.users VALUES (1, 'bob@x.org', 8, 1);
-- Constraint Error: table 'users': duplicate key (id = 1) violates PRIMARY KEY (id)
INSERT INTO lake.public.users VALUES (4, 'ada@x.org', 8, 1);
-- Constraint Error: table 'users': duplicate key (mail = 'ada@x.org') violates UNIQUE (mail)
INSERT INTO lake.public.users VALUES (4, NULL, 7, 1);
-- Constraint Error: table 'users': duplicate key (team = 7, seat = 1) violates UNIQUE (team, seat)
INSERT INTO lake.public.users VALUES (5, 'eve@x.org', 9, 1), (5, 'max@x.org', 9, 2);
-- Constraint Error: table 'users': duplicate key (id = 5) violates PRIMARY KEY (id)
INSERT INTO lake.public.users VALUES (NULL, 'eve@x.org', 9, 1);
-- Constraint Error: NOT NULL constraint failed: users.id
UPDATE lake.public.users SET mail = 'ada@x.org' WHERE id = 2;
-- Constraint Error: table 'users': duplicate key (mail = 'ada@x.org') violates UNIQUE (mail)
SELECT id, mail, team, seat FROM lake.public.users ORDER BY id;
-- id | mail | team | seat
-- 1 | ada@x.org | 7 | 1
-- 2 | NULL | 7 | NULL
-- 3 | NULL | 7 | NULL

-- Keys may change their places within a statement, and a key that is deleted is free again.

-- only with a server: DuckDB's own index still has the old keys
UPDATE lake.public.users SET id = 4 - id;
SELECT id, mail FROM lake.public.users ORDER BY id;
-- id | mail
-- 1 | NULL
-- 2 | NULL
-- 3 | ada@x.org
BEGIN;
SELECT lake.tx.begin() <> '' AS begun;
-- begun
-- true
DELETE FROM lake.public.users WHERE id = 3;
INSERT INTO lake.public.users VALUES (3, 'eve@x.org', 7, 2);
SELECT lake.tx.commit() AS ended;
-- ended
-- committed
COMMIT;

DROP TABLE lake.public.users;
