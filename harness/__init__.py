"""The command line: launches methods side by side, measures them, checks them and keeps the results."""
