"""Forwards: the prefix, tails over views of it, the letters' scores, and the kernels that compute them."""
