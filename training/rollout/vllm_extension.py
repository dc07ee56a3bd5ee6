"""Extensions of a vLLM worker (``--worker-extension-cls``).

Imported inside vLLM's own environment, which has none of this project's dependencies: nothing of ours is imported here.
The methods are called on every worker by ``POST /collective_rpc {"method": ..., "kwargs": {...}}``.
"""

from __future__ import annotations

from typing import Any


class PolicyWorker:
    """Mixed into vLLM's worker class, whose attribute ``model_runner`` holds the model."""

    model_runner: Any

    def load_policy(self, path: str) -> None:
        """Replace all weights by those of the folder ``path``, which every worker must be able to read.

        vLLM's ``reload_weights`` renews the embedding of a model with tied embeddings, and on CPU leaves its output
        layer as it was: that holds a repacked copy, made once while loading. Measured here: log-probabilities of the
        new embedding with the old output layer, wrong by 0.07 after one step, and no error. So the copy is made anew.
        """
        self.model_runner.reload_weights(weights_path=path)
        model = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        if head is not None and getattr(model.config, "tie_word_embeddings", False):
            head.quant_method.process_weights_after_loading(head)
