"""The regression gate: what a change may cost, as counters that must not move and ratios of times."""
