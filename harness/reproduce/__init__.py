"""`nestpipe reproduce`: the paper's tables and figures, beside what this project measures."""
