-- Runs once, in an empty volume, as root.
GRANT SELECT, RELOAD, SHOW DATABASES, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'debezium'@'%';

USE shop;
CREATE TABLE customers (
  id BIGINT NOT NULL PRIMARY KEY,
  name VARCHAR(80) NOT NULL,
  email VARCHAR(120),
  credit DECIMAL(12, 2) NOT NULL DEFAULT 0,
  born DATE,
  updated DATETIME(3) NOT NULL
);
INSERT INTO customers VALUES
  (1, 'Ada', 'ada@example.org', 10.50, '1985-12-10', '2026-01-01 10:00:00.000'),
  (2, 'Grace', NULL, 0, '1986-12-09', '2026-01-01 10:00:01.250'),
  (3, 'Edsger', 'edsger@example.org', 99999.99, NULL, '2026-01-01 10:00:02.500'),
  (4, 'Barbara', '', -3.25, '1990-11-07', '2026-01-01 10:00:03.000');
