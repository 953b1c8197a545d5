"""`nestpipe sweep`: a ladder of changes or a grid, measured in rounds that survive being killed."""
