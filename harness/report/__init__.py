"""`nestpipe report`: results of any kind as one page that needs nothing but a browser."""
