"""`nestpipe kernels`: the ops of `nestpipe.kernels`, measured."""
