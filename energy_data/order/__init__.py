"""Which sample comes when: pure, vectorised functions of (seed, place); nothing here holds a place.

- `keys`: keyed numbers, one 64-bit mix over a key tuple
- `permutation`: a keyed permutation of [0, n), invertible, any n to 2**62
- `choice`, `epochized`, `exhausting`: which child a lane draws next, and how often each was drawn
  before; `splits`: the two-way splits they are made of
- `schedule`, `scheduled`: weights that change over the run, and which child is next under them
- `shares`: which sample of its dataset a lane's n-th draw is
- `tree`: the above, composed: draw number -> entry
"""
