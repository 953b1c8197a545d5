"""The emulated cluster: real processes, collectives and training; only durations are modelled."""
