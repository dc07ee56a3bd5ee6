"""A policy that says whole messages of a table: a real template and model class, and weights that are written by hand.

It reads how what was said to it ends, draws one of the messages that the table has for that, and ends its message. What
it says comes from its weights like any policy's: it is sampled, trained on and changed by training. So a round of a few
rollouts has successes and failures, which a random model's never has.

How: an ending and the head of the assistant's message are one added token, a message of the table is another one. The
embedding of each ending is a dimension of its own, far above what the random layers add to it, and the rows of the
output layer are the logarithms of the table's weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path

from environments.base import ToolCall

AFTER_TOOLS = "</tool_response>"
"""The ending of the answers of tools."""
ELSE = ""
"""Any ending that the table does not have."""
SILENCE = ""
"""A message without a word, which ends the user's turn."""

HEAD = "<|im_end|>\n<|im_start|>assistant\n"
HIDDEN = 64
NEVER = -30.0
SHAPE = {
    "hidden_size": HIDDEN,
    "num_attention_heads": 1,
    "head_dim": 8,  # cheap: prompts have thousands of tokens
    "initializer_range": 0.005,  # what the layers add is noise
    "tie_word_embeddings": False,
}
CHARACTERS = 24

Table = Mapping[str, Mapping[str, float]]


def ending(text: str) -> str:
    """What the policy reads of a user's message."""
    return text[-CHARACTERS:]


def calls(*made: ToolCall) -> str:
    """A message with these calls, as Qwen's templates write it."""
    written = (json.dumps({"name": call.name, "arguments": call.arguments}) for call in made)
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in written)


def save_table_policy(folder: Path, template_name: str, says: Table, texts: Sequence[str] = ()) -> Path:
    """Save a policy of the table ``says``: weights by message, by ending; ``texts`` teach its tokenizer short words."""
    import torch
    from tokenizers import AddedToken

    from support.chat_models import new_tokenizer, random_model, save, template

    known = new_tokenizer(template(template_name), texts, 6144)
    messages = sorted({message for one in says.values() for message in one if message != SILENCE})
    heads = {end: end + HEAD for end in says if end != ELSE}
    known.add_tokens([AddedToken(text, normalized=False) for text in (*heads.values(), *messages)])
    model = random_model(template_name, known, **SHAPE)
    assert len(says) < HIDDEN
    read = {end: known.convert_tokens_to_ids(heads[end]) if end in heads else known.encode("\n")[-1] for end in says}
    said = {message: known.convert_tokens_to_ids(message) for message in messages}
    said[SILENCE] = known.convert_tokens_to_ids("<|im_end|>")
    size = HIDDEN**0.5  # of the one entry that is not zero, after the norm
    with torch.no_grad():
        embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embedding.zero_()
        embedding[:, 0] = 1.0  # whatever else is read, a message of the table included, the message ends
        output.zero_()
        output[:, : len(says) + 1] = NEVER / size
        output[said[SILENCE], 0] = 0.0
        for place, (end, weights) in enumerate(says.items(), start=1):
            embedding[read[end]] = torch.nn.functional.one_hot(torch.tensor(place), HIDDEN).float()
            for message, weight in weights.items():
                output[said[message], place] = log(weight) / size
    return save(folder, model, known)
