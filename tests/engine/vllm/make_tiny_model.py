"""make_tiny_model.py DIRECTORY: a Qwen2 with random weights, and its tokenizer, made offline.

It answers with readable words, one a token, and may stop at each with a fair chance. It needs what a vLLM
environment has: torch, safetensors, tokenizers.
"""

import json
import sys
from pathlib import Path
from typing import Any

# mypy does not see vLLM's environment.
import torch  # type: ignore[import-not-found]
from safetensors.torch import save_file  # type: ignore[import-not-found]
from tokenizers import (  # type: ignore[import-not-found]
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

VOCABULARY = 2048
# So many layers that a token takes milliseconds: an engine that is much faster than any real one keeps its
# API server too busy to notice that a client has left.
LAYERS, HIDDEN, HEADS, KV_HEADS, INNER, POSITIONS = 36, 128, 4, 2, 256, 4096
# Logit offset of the end token: 0 is as likely as any word.
END_BIAS = 1.0
# What the constant channel grows to after the last norm, measured with the sizes above.
CHANNEL_GAIN = 8
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
WORD_LIST = (
    "the of and to in is that it for on with as was at by an be this are from or have not had but which "
    "one you were all their there been has when who will more if no out so what up said its about into "
    "than them can only other time new some could these two may first then do any like my now over such "
    "our man me even most made after also did many hello world model server gateway stream token "
    "request response system user assistant function name arguments json tool call weather city value "
    "number string object"
)
CHAT_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n"
    "{%- if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}\n{% endif %}"
    "# Tools\n<tools>{% for t in tools %}\n{{ t | tojson }}{% endfor %}\n</tools><|im_end|>\n"
    "{%- elif messages[0]['role'] == 'system' %}"
    "<|im_start|>system\n{{ messages[0]['content'] }}<|im_end|>\n{%- endif %}"
    "{%- for m in messages %}"
    "{%- if not (loop.first and m['role'] == 'system') %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}"
    "{%- for c in (m.tool_calls or []) %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{%- endfor %}"
    "<|im_end|>\n{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE in which each of the words, with the space before it, is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = WORD_LIST.split()
    corpus = [" ".join(words[at : at + 12]) for at in range(len(words))] * 4
    corpus += ['{"name": "get_weather", "arguments": {"city": "Paris"}}'] * 20
    corpus += [" ".join(word + str(at) for word in words) for at in range(30)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def tokenizer_config(ids: dict[str, int]) -> dict[str, Any]:
    """What transformers wants beside tokenizer.json."""
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    added = {
        str(at): {"content": text, "special": not text.endswith("tool_call>"), **flags}
        for text, at in ids.items()
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "chat_template": CHAT_TEMPLATE,
    }


def model_config(ids: dict[str, int], vocabulary: int) -> dict[str, Any]:
    """The config.json of a Qwen2 with these sizes."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": vocabulary,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "attention_dropout": 0.0,
    }


def generation_config(ids: dict[str, int]) -> dict[str, Any]:
    """The sampling defaults that Qwen2.5 ships."""
    return {
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "repetition_penalty": 1.05,
    }


def random_weights(vocabulary: int) -> dict[str, torch.Tensor]:
    """Random weights, the same each time; channel 0 of the residual stays at 4: no layer writes to it."""
    generator = torch.Generator().manual_seed(1234)

    def noise(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.05).to(torch.bfloat16)

    def ones() -> torch.Tensor:
        return torch.ones(HIDDEN, dtype=torch.bfloat16)

    kv = HIDDEN // HEADS * KV_HEADS
    weights = {
        "model.embed_tokens.weight": noise(vocabulary, HIDDEN),
        "lm_head.weight": noise(vocabulary, HIDDEN),
        "model.norm.weight": ones(),
    }
    weights["model.embed_tokens.weight"][:, 0] = 4.0
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, size in (("q", HIDDEN), ("k", kv), ("v", kv)):
            weights[f"{prefix}self_attn.{name}_proj.weight"] = noise(size, HIDDEN)
            weights[f"{prefix}self_attn.{name}_proj.bias"] = noise(size)
        weights[prefix + "self_attn.o_proj.weight"] = noise(HIDDEN, HIDDEN)
        weights[prefix + "mlp.gate_proj.weight"] = noise(INNER, HIDDEN)
        weights[prefix + "mlp.up_proj.weight"] = noise(INNER, HIDDEN)
        weights[prefix + "mlp.down_proj.weight"] = noise(HIDDEN, INNER)
        weights[prefix + "self_attn.o_proj.weight"][0, :] = 0
        weights[prefix + "mlp.down_proj.weight"][0, :] = 0
        weights[prefix + "input_layernorm.weight"] = ones()
        weights[prefix + "post_attention_layernorm.weight"] = ones()
    return weights


def word_bias(tokenizer: Tokenizer, ids: dict[str, int], vocabulary: int) -> torch.Tensor:
    """Logits that make words likely, and byte fragments and special tokens all but impossible."""
    bias = torch.full((vocabulary,), -30.0)
    for at in tokenizer.get_vocab().values():
        text = tokenizer.decode([at], skip_special_tokens=False)
        if at not in ids.values() and text.startswith(" ") and len(text) > 2 and text.strip().isalpha():
            bias[at] = 0.0
    bias[ids["<|im_end|>"]] = END_BIAS
    return bias


def main() -> None:
    """Write the model."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    ids = {text: at for text in SPECIAL if (at := tokenizer.token_to_id(text)) is not None}
    vocabulary = -(-tokenizer.get_vocab_size() // 64) * 64
    tokenizer.save(str(out / "tokenizer.json"))
    files = {
        "tokenizer_config.json": tokenizer_config(ids),
        "config.json": model_config(ids, vocabulary),
        "generation_config.json": generation_config(ids),
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=1))
    weights = random_weights(vocabulary)
    # With channel 0 constant, the head's column 0 is a bias per token.
    bias = word_bias(tokenizer, ids, vocabulary) / CHANNEL_GAIN
    weights["lm_head.weight"][:, 0] = bias.to(torch.bfloat16)
    save_file(weights, str(out / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    main()
