"""Published names of transformers. Most libraries store queries, keys and values as one tensor, which is split here."""

from __future__ import annotations

from typing import Any

from .naming import Names, WeightSource


def _joined(prefix: str, weight: str, bias: str, *, transposed: bool = False) -> list[dict[str, WeightSource]]:
    """Query, key and value out of one tensor of three parts."""
    return [
        {"weight": WeightSource(prefix + weight, part, 3, transposed), "bias": WeightSource(prefix + bias, part, 3)}
        for part in range(3)
    ]


def _conv1d(name: str) -> dict[str, WeightSource]:
    return {"weight": WeightSource(f"{name}.weight", transposed=True), "bias": WeightSource(f"{name}.bias")}


def vit_timm(model: Any) -> Names:
    yield {"first": WeightSource("cls_token"), "places": WeightSource("pos_embed")}
    yield "patch_embed.proj"
    for number, _ in enumerate(model.blocks):
        prefix = f"blocks.{number}."
        yield from (f"{prefix}mlp.fc1", f"{prefix}mlp.fc2", f"{prefix}norm2")
        yield from _joined(prefix, "attn.qkv.weight", "attn.qkv.bias")
        yield from (f"{prefix}attn.proj", f"{prefix}norm1")
    yield from ("norm", "head")


def vit_torchvision(model: Any) -> Names:
    yield {"first": WeightSource("class_token"), "places": WeightSource("encoder.pos_embedding")}
    yield "conv_proj"
    for number, _ in enumerate(model.blocks):
        prefix = f"encoder.layers.encoder_layer_{number}."
        yield from (f"{prefix}mlp.0", f"{prefix}mlp.3", f"{prefix}ln_2")
        yield from _joined(prefix, "self_attention.in_proj_weight", "self_attention.in_proj_bias")
        yield from (f"{prefix}self_attention.out_proj", f"{prefix}ln_1")
    yield from ("encoder.ln", "heads.head")


def vit_hugging_face(model: Any) -> Names:
    yield {"first": WeightSource("embeddings.cls_token"), "places": WeightSource("embeddings.position_embeddings")}
    yield "embeddings.patch_embeddings.projection"
    for number, _ in enumerate(model.blocks):
        prefix = f"encoder.layer.{number}."
        yield from (f"{prefix}intermediate.dense", f"{prefix}output.dense", f"{prefix}layernorm_after")
        yield from (f"{prefix}attention.attention.{role}" for role in ("query", "key", "value"))
        yield from (f"{prefix}attention.output.dense", f"{prefix}layernorm_before")
    yield from ("layernorm", "classifier")


def gpt2_hugging_face(model: Any) -> Names:
    yield from ("wte", "wpe")
    for number, _ in enumerate(model.blocks):
        prefix = f"h.{number}."
        yield from (_conv1d(f"{prefix}mlp.c_fc"), _conv1d(f"{prefix}mlp.c_proj"))
        yield f"{prefix}ln_2"
        yield from _joined(prefix, "attn.c_attn.weight", "attn.c_attn.bias", transposed=True)
        yield _conv1d(f"{prefix}attn.c_proj")
        yield f"{prefix}ln_1"
    yield "ln_f"
