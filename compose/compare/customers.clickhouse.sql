SELECT id, name, ifNull(email, '(null)'), toDecimalString(credit, 2), ifNull(toString(born), '(null)'), updated
FROM shop.customers_current ORDER BY id
