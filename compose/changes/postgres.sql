-- Changes that the tables must follow: values left out of the event, key changes, two keys swapped, delete, many rows.
UPDATE orders SET paid = true WHERE region = 'north' AND id = 1;
UPDATE orders SET region = 'east' WHERE region = 'north' AND id = 1;
BEGIN;
UPDATE orders SET id = -1 WHERE region = 'south' AND id = 1;
UPDATE orders SET id = 1 WHERE region = 'south' AND id = 2;
UPDATE orders SET id = 2 WHERE region = 'south' AND id = -1;
COMMIT;
DELETE FROM orders WHERE region = 'north' AND id = 2;
INSERT INTO orders
  SELECT 'west', n, n % 5, n / 4.0, n % 2 = 0, repeat('note ', n), '2026-01-03 09:00:00' FROM generate_series(1, 500) AS n
  ON CONFLICT (region, id) DO UPDATE SET amount = orders.amount + 1;
DELETE FROM orders WHERE region = 'west' AND id % 7 = 0;
