"""The type of most arrays: indices, counts, sizes and places in files."""

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
