"""`nestpipe train`: methods trained for epochs and evaluated on what was held out."""
