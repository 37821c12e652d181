"""What each micro-batch says of the step it is in."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Step:
    """The field `__step__` of a micro-batch. All that begins with `step_` is over all ranks.

    A loss that is a sum over its own micro-batch is normalised by `loss * dp_size / step_tokens`
    (or another total) where gradients are averaged over ranks, without `dp_size` where summed.
    """

    step: int  # number of the step in the run
    index: int  # of this micro-batch in the step
    num_microbatches: int  # in the step, the same on all ranks
    is_empty: bool  # it holds nothing, and is there so that all ranks have equally many
    is_short: bool  # the step holds less than the target: the stream, or its stage, has ended
    docs: int  # documents in this micro-batch
    step_docs: int
    step_samples: int | None  # None: some micro-batch does not say; so below
    step_tokens: int | None
    step_labels: int | None
    step_groups: int | None
    docs_seen: int  # documents of all steps before this one
    dp_size: int  # ranks

    @property
    def is_first(self) -> bool:
        """Whether it is the first of its step."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether it is the last of its step: time to step the optimizer."""
        return self.index == self.num_microbatches - 1
