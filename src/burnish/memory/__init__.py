"""Memory: bytes that one rank holds in training, by kind, on the first, second and last stage of a pipeline.

Sums over the description of a decoder (`parts`), divided by a mapping (`moments`), with what a stack keeps beside
(`sizes`). The peak is the fullest of three moments (`steps`): the loss, the backward of a layer that runs again, the
optimizer. `many` asks for whole tables of settings.
"""

from burnish.memory.many import Peaks, peaks
from burnish.memory.sizes import Sizes, sizes_of
from burnish.memory.steps import KINDS, between_steps, case_of, peak, stage_memory

__all__ = ["KINDS", "Peaks", "Sizes", "between_steps", "case_of", "peak", "peaks", "sizes_of", "stage_memory"]
