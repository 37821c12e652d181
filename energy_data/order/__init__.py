"""Which sample comes when: pure, vectorised functions of (seed, draw number), without state.

- `permutation`: a keyed permutation of [0, n), any n to 2**62
- `splits`: how draws are divided among children by weight, exactly
- `weighted`, `quota`: which child a lane draws next, and how often each was drawn before
- `schedule`: weights that change over the run
- `shares`: which sample of its dataset a lane's n-th draw is
- `tree`: the above, composed: draw number -> entry
- `step_rules`: how large optimizer steps are
"""
