"""The target table: what the server says of it, and the SQL that makes one."""
