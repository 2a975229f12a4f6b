"""Everything that computes. One thread, the engine thread, owns all of MLX; the rest of the process sends it jobs.

Importing the package puts the BLAS in place, in whichever thread that is, so that it is there before any module here
imports mlx, in whatever order.
"""

from .blas import prepare

prepared = prepare()
