"""What every method must satisfy, checked on a small model with several workers."""
