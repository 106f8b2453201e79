SELECT region, id, customer, amount, paid::int, coalesce(md5(note), '(null)'), to_char(placed, 'YYYY-MM-DD HH24:MI:SS.MS')
FROM orders ORDER BY region COLLATE "C", id
