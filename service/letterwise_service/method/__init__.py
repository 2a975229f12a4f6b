"""The method: what is asked of the model, and how its letter scores become probabilities.

Pure Python: the standard library and the domain's errors, nothing else. No MLX, no gRPC, no I/O.
"""
