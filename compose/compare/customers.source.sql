SELECT id, name, IFNULL(email, '(null)'), credit, IFNULL(born, '(null)'), updated FROM customers ORDER BY id
