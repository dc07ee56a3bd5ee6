"""Score rollouts that were held to the tools on offer by the distribution that they were sampled from.

With ``training.held_to_tools`` no name of a tool that the task does not offer is sampled: such a token's probability is
0, and the others' are divided by what remains. That restricted policy is the one that is trained. Its log-probabilities
are not the model's: where the trainer scored rollouts without the restriction, each name of a tool would be compared
with a smaller probability than it was drawn with. The ratio of two updates would be off by the change of the mass on
withheld tools, the importance weight of an engine by that mass, and gradients would pull at names that cannot be drawn
at all. So every score of a rollout is restricted in the same way: of the policy before the step, of the policy that is
updated, and of the reference of the KL term. All of this is our choice.

Import this module late: it needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from training.grpo.off_policy_demonstrations import TokenRow

OUT = -1e4
"""The logit of a withheld id: its probability is 0 in every float type, and its log-probability stays finite, so that
entropies and masked positions never become NaN."""


@dataclass(frozen=True)
class Withheld:
    """The ids that may not be sampled at each position of a batch's completions: ``sets[places[row, position]]``.

    ``places`` is (rows, positions); ``sets`` is (sets, ids of the model), True where an id is withheld. Set 0 is empty:
    it belongs to what the policy did not write.
    """

    places: torch.Tensor
    sets: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[TokenRow], vocabulary: int, device: torch.device) -> Withheld | None:
        """Return what was withheld from ``rows`` of a model with that many ids; None where nothing was."""
        found: dict[tuple[int, ...], int] = {(): 0}
        for row in rows:
            for ids in row.withheld:
                found.setdefault(ids, len(found))
        if len(found) == 1:
            return None
        sets = torch.zeros(len(found), vocabulary, dtype=torch.bool)
        for ids, place in found.items():
            sets[place, list(ids)] = True
        places = torch.zeros(len(rows), max(len(row.mask) for row in rows), dtype=torch.long)
        for number, row in enumerate(rows):
            for begin, ids in zip(row.begins, row.withheld, strict=True):
                places[number, begin : len(row.mask)] = found[ids]
            places[number, : len(row.mask)] *= torch.tensor(row.mask)
        return cls(places.to(device), sets.to(device))

    def at(self, rows: torch.Tensor, width: int) -> Withheld:
        """Return those of ``rows`` in their order, for ``width`` positions."""
        places = self.places[rows][:, :width]
        return Withheld(torch.nn.functional.pad(places, (0, width - places.shape[1])), self.sets)

    def score(
        self,
        model: torch.nn.Module,
        ids: torch.Tensor,
        attended: torch.Tensor,
        temperature: float,
        entropy: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the log-probabilities (nats) of the last ids of each row, as many as there are positions.

        With ``entropy`` also the entropy of each of their distributions. Both are (rows, positions).
        """
        width = self.places.shape[1]
        output = model(input_ids=ids, attention_mask=attended, logits_to_keep=width + 1, use_cache=False)
        logits = output.logits[:, :-1].float() / temperature
        logprobs = torch.log_softmax(logits.masked_fill(self.sets[self.places], OUT), dim=-1)
        picked = logprobs.gather(-1, ids[:, -width:, None])[..., 0]
        return picked, -(logprobs.exp() * logprobs).sum(dim=-1) if entropy else None
