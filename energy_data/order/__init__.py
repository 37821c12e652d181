"""Which sample comes when: pure, vectorised functions of (seed, place), without a position.

- `permutation`: a keyed permutation of [0, n), invertible, any n to 2**62
- `weighted`, `quota`, `epochized`: which child a lane draws next, and how often each was drawn
  before; `splits`: the two-way splits they are made of
- `schedule`: weights that change over the run
- `shares`: which sample of its dataset a lane's n-th draw is
- `bin_packing`: which documents fit into a pack
- `tree`: the above, composed: draw number -> entry
"""
