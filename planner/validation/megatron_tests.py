"""Networks of Megatron-LM's functional tests, built from the command-line flags that their rows repeat.

What a test leaves out takes Megatron-LM's default: MLP width 4 x hidden (8/3 rounded to 64 with a gated MLP), one
key/value head per head, the GPT-2 vocabulary of 50,257 padded to a multiple of 128 x TP, tied embeddings, learned
positions, Mamba-2 with head width 64, 8 groups and state 128. Named models take their own vocabulary.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.domain.model import Attention, Mlp, Model
from planner.files.layer_parts import (
    Gqa,
    Mla,
    Moe,
    dense_mlp,
    gqa,
    mamba2,
    mla,
    moe_mlp,
    without_attention,
    without_mlp,
)
from planner.files.stack import Layer, layer_classes
from planner.validation.read import Row, RowError, check_layers, integer, text

_GPT2_VOCABULARY = 50257
_BERT_VOCABULARY = 30592
_VOCABULARIES = {"gpt3_15b": 256000, "mixtral": 32000, "deepseek": 129280, "nemotron": 131072, "llava": 8192}
"""Of the tokenizers that tests of named models load, by part of the row's id."""
_PADDING = 128
_PLAIN_TESTS = ("gpt test model", "bert test model", "hybrid test model", "multimodal-llava test model")
_MLA_NOPE = 128
_MLA_ROPE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TestFlags:
    """The flags of one test: `arguments` with a value and `switches`."""

    arguments: dict[str, str]
    switches: frozenset[str]

    def count(self, name: str, default: int) -> int:
        value = self.arguments.get(name, "")
        return int(value) if value.isdigit() else default

    def has(self, name: str) -> bool:
        return name in self.switches or self.arguments.get(name) == "True"


def read_flags(row: Row) -> TestFlags:
    """`a=1; b=True | c; d=x` -> arguments and switches."""
    arguments: dict[str, str] = {}
    switches: set[str] = set()
    for part in re.split(r"[;|]\s", text(row, "flags") + " "):
        name, has_value, value = part.strip().strip("|").strip().partition("=")
        if has_value:
            arguments[name] = value
        elif name:
            switches.add(name)
    return TestFlags(arguments=arguments, switches=frozenset(switches))


def is_plain_test(row: Row) -> bool:
    """A small network that exists for the test only: Megatron-LM's default dropout of 0.1 applies."""
    return text(row, "model") in _PLAIN_TESTS and "release" not in text(row, "id")


def has_unfused_attention(row: Row, flags: TestFlags) -> bool:
    """Where the flags name such a back end, and in tests without Transformer Engine (`mcore_tp...`, not `mcore_te`)."""
    name = text(row, "id")
    # FP8 exists only with Transformer Engine
    is_local = ("mcore_tp" in name or "uninstall_te" in name) and "fp8" not in name
    return is_local or flags.arguments.get("attention-backend") in ("unfused", "local")


def test_model(row: Row, flags: TestFlags, tp: int) -> Model:
    """The network of a test; RowError where the flags do not give its shape."""
    name = text(row, "id")
    hidden = flags.count("hidden-size", 0)
    if not hidden:
        raise RowError("hidden size not stated")
    num_layers = integer(row, "layers")
    check_layers(num_layers)
    pattern = flags.arguments.get("hybrid-layer-pattern", "")
    if pattern:
        # the parts behind slashes are multi-token-prediction modules: layers like any other for memory
        layers = tuple(_hybrid_layer(symbol, flags, hidden) for symbol in pattern if symbol in "M*E-")
    elif num_layers:
        layers = tuple(_layer(flags, hidden, index) for index in range(num_layers))
    else:
        raise RowError("layers not stated")
    is_tied = not flags.has("untie-embeddings-and-output-weights")
    positions = 0 if flags.arguments.get("normalization") == "RMSNorm" or pattern else integer(row, "seq_len", 0) or 0
    return Model(
        id=f"test:{name}",
        hf_repo="",
        architecture="megatron test",
        hidden_size=hidden,
        vocab_size=_vocabulary(row, flags, tp),
        is_embedding_tied=is_tied,
        layers=layer_classes(layers),
        extra_params=hidden * (positions + 2),
        mtp_params=0,
        max_positions=None,
    )


def _vocabulary(row: Row, flags: TestFlags, tp: int) -> int:
    name, model = text(row, "id"), text(row, "model")
    default = _BERT_VOCABULARY if model.startswith("bert") else _GPT2_VOCABULARY
    default = next((size for part, size in _VOCABULARIES.items() if part in name), default)
    unit = _PADDING * tp
    return -(-flags.count("vocab-size", default) // unit) * unit


def _attention(flags: TestFlags, hidden: int) -> Attention:
    heads = flags.count("num-attention-heads", 0)
    if not heads:
        raise RowError("attention heads not stated")
    width = flags.count("kv-channels", hidden // heads)
    if flags.has("multi-latent-attention"):
        return mla(
            Mla(
                hidden=hidden,
                num_heads=heads,
                nope_dim=_MLA_NOPE,
                rope_dim=_MLA_ROPE,
                value_dim=_MLA_NOPE,
                kv_rank=flags.count("kv-lora-rank", 512),
                query_rank=flags.count("q-lora-rank", 0),
            )
        )
    has_groups = flags.has("group-query-attention") or "num-query-groups" in flags.arguments
    groups = flags.count("num-query-groups", heads) if has_groups else heads
    shape = Gqa(hidden=hidden, num_heads=heads, num_kv_heads=groups, head_dim=width)
    return gqa(shape, window=None, replicated=2 * hidden)


def _dense(flags: TestFlags, hidden: int) -> Mlp:
    is_gated = flags.has("swiglu")
    default = int(hidden * 4 * 2 / 3 / 64) * 64 if is_gated else 4 * hidden
    width = flags.count("ffn-hidden-size", default)
    return dense_mlp(hidden=hidden, width=width, is_gated=is_gated, replicated=2 * hidden)


def _experts(flags: TestFlags, hidden: int) -> Mlp:
    return moe_mlp(
        Moe(
            hidden=hidden,
            num_experts=flags.count("num-experts", 1),
            num_active=flags.count("moe-router-topk", 2),
            width=flags.count("moe-ffn-hidden-size", flags.count("ffn-hidden-size", 4 * hidden)),
            is_gated=flags.has("swiglu"),
            shared_width=flags.count("moe-shared-expert-intermediate-size", 0),
        )
    )


def _layer(flags: TestFlags, hidden: int, index: int) -> Layer:
    """Layer `index`; `moe-layer-freq` of the form ([0]*3+[1]*11) puts the dense layers first."""
    leading = re.match(r"\(\[0\]\*(\d+)", flags.arguments.get("moe-layer-freq", ""))
    is_dense = not flags.count("num-experts", 0) or (leading is not None and index < int(leading.group(1)))
    mlp = _dense(flags, hidden) if is_dense else _experts(flags, hidden)
    return Layer(attention=_attention(flags, hidden), mlp=mlp, norm_params=4 * hidden)


def _hybrid_layer(symbol: str, flags: TestFlags, hidden: int) -> Layer:
    """M: Mamba-2, *: attention, -: MLP, E: experts, each behind one norm."""
    attention, mlp = without_attention(), without_mlp()
    if symbol == "M":
        attention = mamba2(
            hidden=hidden,
            num_heads=2 * hidden // 64,
            head_dim=64,
            groups=8,
            state_size=128,
            conv=4,
            has_conv_bias=True,
            state_elements=1,
        )
    elif symbol == "*":
        attention = _attention(flags, hidden)
    elif symbol == "-":
        mlp = _dense(flags, hidden)
    else:
        mlp = _experts(flags, hidden)
    return Layer(attention=attention, mlp=mlp, norm_params=hidden)
