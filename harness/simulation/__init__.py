"""The simulator: a schedule's ops on lanes, with durations from a cost model; imports no torch."""
