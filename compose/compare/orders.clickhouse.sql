SELECT region, id, customer, toDecimalString(amount, 2), toUInt8(paid), ifNull(lower(hex(MD5(note))), '(null)'),
  toDateTime64(placed, 3)
FROM shop.orders_current ORDER BY region, id
