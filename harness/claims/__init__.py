"""`nestpipe claims`: every claim of the paper as a row, and what becomes of it here."""
