"""From records to inserts: planning one chunk, and carrying the plans of one partition out."""
