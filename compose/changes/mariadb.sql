-- Changes that the tables must follow: update, delete, key change, re-insert under a used key, many rows at once.
UPDATE customers SET credit = credit + 5, updated = '2026-01-03 12:00:00.125' WHERE id = 1;
UPDATE customers SET email = NULL WHERE id = 3;
DELETE FROM customers WHERE id = 2;
UPDATE customers SET id = 40 WHERE id = 4;
REPLACE INTO customers VALUES (2, 'Grace', 'grace@example.org', 1.00, '1986-12-09', '2026-01-03 12:00:01.000');
INSERT INTO customers
  SELECT 1000 + seq, CONCAT('customer ', seq), NULL, seq / 4, '2000-02-29', '2026-01-03 12:00:02.000' FROM seq_1_to_500
  ON DUPLICATE KEY UPDATE credit = customers.credit + 1;
DELETE FROM customers WHERE id > 1000 AND id % 7 = 0;
