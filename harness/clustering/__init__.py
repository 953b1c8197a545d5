"""Ways to sort a batch's samples into micro-batches, measured against each other and against a bound."""
