-- Runs once, in an empty volume.
CREATE TABLE orders (
  region text NOT NULL,
  id bigint NOT NULL,
  customer bigint NOT NULL,
  amount numeric(12, 2) NOT NULL,
  paid boolean NOT NULL DEFAULT false,
  note text,
  placed timestamp(3) NOT NULL,
  PRIMARY KEY (region, id)
);
-- Long notes are stored apart: updates that leave them alone arrive without them.
ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL;
INSERT INTO orders VALUES
  ('north', 1, 1, 12.00, false, repeat('a long note, ', 300), '2026-01-02 08:00:00'),
  ('north', 2, 2, 7.25, true, NULL, '2026-01-02 08:00:01.5'),
  ('south', 1, 1, 1000000.01, false, 'quick', '2026-01-02 08:00:02'),
  ('south', 2, 4, -5.00, true, '', '2026-01-02 08:00:03');
