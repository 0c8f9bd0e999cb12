"""Programs as users run them, with random weights: models of Hugging Face and plain PyTorch, prefill, decode and training.

``PROGRAMS`` may be seen by rules and parameters; those of ``drawn`` report only, until the next seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from random import Random
from typing import Any

PREFILL, DECODE, FORWARD, TRAINING = "prefill", "decode", "forward", "training"

Step = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Program:
    """A step of a model: ``config`` of a class of transformers, or ``build`` of a plain module.

    ``shape``: batch and length, or batch and picture edge. ``compiled``: by torch.compile. ``attention``: implementation that the model is
    asked for. ``autocast``: weights in fp32, products in bf16. ``drawn``: at most ``MOST_LAYERS``, pictures and sounds in the model's size.
    """

    phase: str
    shape: tuple[int, ...]
    model: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    head: str = "AutoModelForCausalLM"
    build: Callable[[Any], Any] | None = None
    dtype: str = "bfloat16"
    compiled: bool = False
    attention: str = "sdpa"
    autocast: bool = False
    optimizer: str = "AdamW"
    drawn: bool = False


LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
LLAMA_8B |= {"vocab_size": 128256, "max_position_embeddings": 131072}
LLAMA_1B = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8}
LLAMA_1B |= {"head_dim": 64, "vocab_size": 128256, "tie_word_embeddings": True, "max_position_embeddings": 131072}
QWEN3_8B = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
QWEN3_8B |= {"head_dim": 128, "vocab_size": 151936}
QWEN3_06B = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8}
QWEN3_06B |= {"head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True}
QWEN3_MOE = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 4}
QWEN3_MOE |= {"num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936}
MISTRAL = {"num_hidden_layers": 16}
GEMMA2 = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4}
GEMMA2 |= {"head_dim": 256, "vocab_size": 256000}
PHI3 = {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32064}
PHI3 |= {"pad_token_id": 32000}
GPT2_XL = {"n_embd": 1600, "n_layer": 48, "n_head": 25}
OPT = {"hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24, "num_attention_heads": 32, "word_embed_proj_dim": 2048}
NEOX = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 50432}
BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
VIT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
T5_BASE = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "decoder_start_token_id": 0}
SWIN_BASE = {"embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32]}
CONVNEXT = {"depths": [3, 3, 27, 3], "hidden_sizes": [128, 256, 512, 1024]}
WHISPER = {"d_model": 1280, "encoder_layers": 32, "decoder_layers": 4, "encoder_attention_heads": 20, "decoder_attention_heads": 20}
WHISPER |= {"encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120, "num_mel_bins": 128}

PROGRAMS: dict[str, Program] = {
    "llama-8b-prefill": Program(PREFILL, (1, 2048), "LlamaConfig", LLAMA_8B),
    "llama-8b-decode-32": Program(DECODE, (32, 1024), "LlamaConfig", LLAMA_8B),
    "llama-1b-decode-1": Program(DECODE, (1, 512), "LlamaConfig", LLAMA_1B),
    "llama-1b-training": Program(TRAINING, (2, 2048), "LlamaConfig", LLAMA_1B),
    "llama-1b-prefill-compiled": Program(PREFILL, (4, 1024), "LlamaConfig", LLAMA_1B, compiled=True),
    "llama-1b-prefill-eager": Program(PREFILL, (2, 1024), "LlamaConfig", LLAMA_1B, attention="eager"),
    "qwen3-8b-prefill": Program(PREFILL, (4, 1024), "Qwen3Config", QWEN3_8B),
    "qwen3-0.6b-training": Program(TRAINING, (4, 1024), "Qwen3Config", QWEN3_06B, autocast=True),
    "qwen3-0.6b-decode-64": Program(DECODE, (64, 512), "Qwen3Config", QWEN3_06B),
    "qwen3-0.6b-training-compiled": Program(TRAINING, (4, 1024), "Qwen3Config", QWEN3_06B, compiled=True),
    "qwen3-moe-prefill": Program(PREFILL, (2, 1024), "Qwen3MoeConfig", QWEN3_MOE),
    "mistral-prefill": Program(PREFILL, (1, 4096), "MistralConfig", MISTRAL),
    "gemma2-2b-prefill": Program(PREFILL, (2, 2048), "Gemma2Config", GEMMA2),
    "phi3-mini-prefill": Program(PREFILL, (2, 1536), "Phi3Config", PHI3),
    "gpt2-training": Program(TRAINING, (8, 1024), "GPT2Config", {}, autocast=True),
    "gpt2-xl-prefill-fp16": Program(PREFILL, (4, 1024), "GPT2Config", GPT2_XL, dtype="float16"),
    "gpt2-training-fp32": Program(TRAINING, (4, 512), "GPT2Config", {}, dtype="float32"),
    "opt-1.3b-prefill": Program(PREFILL, (4, 1024), "OPTConfig", OPT),
    "neox-2.8b-prefill": Program(PREFILL, (2, 2048), "GPTNeoXConfig", NEOX),
    "bert-large-forward": Program(FORWARD, (32, 384), "BertConfig", BERT_LARGE, "AutoModel"),
    "bert-base-training": Program(TRAINING, (32, 256), "BertConfig", {}, "AutoModelForMaskedLM"),
    "bert-base-forward-compiled": Program(FORWARD, (64, 256), "BertConfig", {}, "AutoModel", compiled=True),
    "roberta-base-forward-fp32": Program(FORWARD, (16, 256), "RobertaConfig", {}, "AutoModel", dtype="float32"),
    "deberta-v2-forward": Program(FORWARD, (16, 256), "DebertaV2Config", {"num_hidden_layers": 12, "hidden_size": 768}, "AutoModel"),
    "vit-large-forward": Program(FORWARD, (64, 224), "ViTConfig", VIT_LARGE, "AutoModel"),
    "vit-base-training": Program(TRAINING, (64, 224), "ViTConfig", {}, "AutoModelForImageClassification", autocast=True),
    "dinov2-base-forward": Program(FORWARD, (64, 224), "Dinov2Config", {"image_size": 224}, "AutoModel"),
    "swin-base-forward": Program(FORWARD, (64, 224), "SwinConfig", SWIN_BASE, "AutoModel"),
    "convnext-base-forward": Program(FORWARD, (64, 224), "ConvNextConfig", CONVNEXT, "AutoModel"),
    "resnet50-training": Program(TRAINING, (64, 224), "ResNetConfig", {}, "AutoModelForImageClassification", autocast=True),
    "resnet50-forward": Program(FORWARD, (128, 224), "ResNetConfig", {}, "AutoModel"),
    "t5-base-training": Program(TRAINING, (8, 512), "T5Config", T5_BASE, "AutoModelForSeq2SeqLM"),
    "whisper-encoder-forward": Program(FORWARD, (8, 3000), "WhisperConfig", WHISPER, "encoder"),
    "segformer-forward": Program(FORWARD, (16, 512), "SegformerConfig", {}, "AutoModel"),
    "gpt-plain-training": Program(TRAINING, (16, 512), build=lambda torch: gpt(torch, 768, 12, 12)),
    "gpt-plain-training-compiled": Program(TRAINING, (16, 512), build=lambda torch: gpt(torch, 768, 12, 12), compiled=True),
    "gpt-plain-training-sgd": Program(TRAINING, (8, 1024), build=lambda torch: gpt(torch, 1024, 16, 8), optimizer="SGD"),
    "dit-plain-forward": Program(FORWARD, (16, 32), build=lambda torch: dit(torch, 1152, 16, 14)),
    "unet-plain-forward": Program(FORWARD, (8, 64), build=lambda torch: unet(torch, 320)),
    "unet-plain-training": Program(TRAINING, (8, 64), build=lambda torch: unet(torch, 192), autocast=True),
}
"""Programs that rules and parameters may see."""


LLAMA_3B = {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8}
LLAMA_3B |= {"head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": True, "max_position_embeddings": 131072}
QWEN2_7B = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
QWEN2_7B |= {"vocab_size": 152064}
OLMO2 = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 16, "vocab_size": 100352}
STARCODER2 = {"hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2}
STABLELM = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 32}
GEMMA3 = {"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1}
GEMMA3 |= {"head_dim": 256, "vocab_size": 262144}
FALCON = {"hidden_size": 4544, "num_hidden_layers": 12, "num_attention_heads": 71, "vocab_size": 65024}
BLOOM = {"hidden_size": 2048, "n_layer": 24, "n_head": 16, "vocab_size": 250880}
VIT_HUGE = {"hidden_size": 1280, "num_hidden_layers": 32, "num_attention_heads": 16, "intermediate_size": 5120, "patch_size": 14}
CLIP = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "patch_size": 14}
SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16, "patch_size": 14}
ROBERTA_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 50265}

PROGRAMS |= {
    "llama-1b-prefill-short": Program(PREFILL, (16, 384), "LlamaConfig", LLAMA_1B),
    "llama-3b-training": Program(TRAINING, (1, 3072), "LlamaConfig", LLAMA_3B),
    "llama-8b-decode-long": Program(DECODE, (8, 6000), "LlamaConfig", LLAMA_8B),
    "llama-3b-prefill-fp16": Program(PREFILL, (3, 1500), "LlamaConfig", LLAMA_3B, dtype="float16"),
    "qwen2-7b-prefill": Program(PREFILL, (2, 2048), "Qwen2Config", QWEN2_7B),
    "qwen3-0.6b-training-long": Program(TRAINING, (1, 4096), "Qwen3Config", QWEN3_06B),
    "mistral-decode-16": Program(DECODE, (16, 2000), "MistralConfig", MISTRAL),
    "gemma3-1b-prefill": Program(PREFILL, (4, 1024), "Gemma3TextConfig", GEMMA3),
    "olmo2-1b-training": Program(TRAINING, (2, 1536), "Olmo2Config", OLMO2, autocast=True),
    "starcoder2-3b-prefill": Program(PREFILL, (2, 2048), "Starcoder2Config", STARCODER2),
    "stablelm-training": Program(TRAINING, (4, 768), "StableLmConfig", STABLELM),
    "falcon-prefill": Program(PREFILL, (2, 1024), "FalconConfig", FALCON),
    "bloom-1.7b-prefill": Program(PREFILL, (2, 1024), "BloomConfig", BLOOM),
    "gpt2-medium-training": Program(TRAINING, (4, 1024), "GPT2Config", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "albert-base-forward": Program(FORWARD, (32, 512), "AlbertConfig", {"hidden_size": 768, "num_attention_heads": 12}, "AutoModel"),
    "electra-base-training": Program(
        TRAINING, (24, 384), "ElectraConfig", {"hidden_size": 768, "num_attention_heads": 12}, "AutoModelForMaskedLM"
    ),
    "distilbert-forward-fp16": Program(FORWARD, (96, 200), "DistilBertConfig", {}, "AutoModel", dtype="float16"),
    "roberta-large-training": Program(TRAINING, (16, 256), "RobertaConfig", ROBERTA_LARGE, "AutoModelForMaskedLM", autocast=True),
    "bart-base-training": Program(
        TRAINING, (8, 640), "BartConfig", {"encoder_layers": 6, "decoder_layers": 6, "d_model": 768}, "AutoModelForSeq2SeqLM"
    ),
    "vit-huge-forward": Program(FORWARD, (24, 224), "ViTConfig", VIT_HUGE, "AutoModel"),
    "clip-large-vision-forward": Program(FORWARD, (40, 224), "CLIPVisionConfig", CLIP, "AutoModel"),
    "siglip-vision-forward": Program(FORWARD, (16, 224), "SiglipVisionConfig", SIGLIP, "AutoModel"),
    "beit-base-training": Program(TRAINING, (32, 224), "BeitConfig", {}, "AutoModelForImageClassification"),
    "resnet101-training": Program(TRAINING, (32, 224), "ResNetConfig", {"depths": [3, 4, 23, 3]}, "AutoModelForImageClassification"),
    "convnext-tiny-training": Program(TRAINING, (32, 224), "ConvNextConfig", {}, "AutoModelForImageClassification", autocast=True),
    "gpt-plain-wide-training": Program(TRAINING, (4, 1024), build=lambda torch: gpt(torch, 2048, 16, 6)),
    "gpt-plain-wide-compiled": Program(TRAINING, (4, 1024), build=lambda torch: gpt(torch, 2048, 16, 4), compiled=True),
    "dit-plain-small-training": Program(FORWARD, (64, 16), build=lambda torch: dit(torch, 768, 12, 12)),
    "unet-plain-wide-forward": Program(FORWARD, (4, 96), build=lambda torch: unet(torch, 448)),
    "phi3-compiled-prefill": Program(PREFILL, (2, 1024), "Phi3Config", PHI3, compiled=True),
}

GRANITE = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8}
GRANITE |= {"vocab_size": 49152}
COHERE = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 12, "num_attention_heads": 32, "vocab_size": 256000}
PHI2 = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 16, "num_attention_heads": 32, "vocab_size": 51200}
GLM = {"hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 12, "num_attention_heads": 32, "num_key_value_heads": 2}
GLM |= {"head_dim": 128, "vocab_size": 151552}
MIXTRAL = {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 4}
OLMOE = {"hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 16}
SMOLLM3 = {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 18, "num_attention_heads": 16, "num_key_value_heads": 4}
QWEN2_15B = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2}
QWEN2_15B |= {"vocab_size": 151936, "tie_word_embeddings": True}
QWEN2_05B = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}
QWEN2_05B |= {"vocab_size": 151936, "tie_word_embeddings": True}
GEMMA_2B = {"hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1}
GEMMA_2B |= {"head_dim": 256, "vocab_size": 256000}
IMAGES, MASKED, SEQUENCES = "AutoModelForImageClassification", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM"

PROGRAMS |= {
    "granite-2b-prefill": Program(PREFILL, (3, 1100), "GraniteConfig", GRANITE),
    "cohere-prefill": Program(PREFILL, (2, 1536), "CohereConfig", COHERE),
    "gptj-prefill-fp16": Program(PREFILL, (2, 1024), "GPTJConfig", {"n_embd": 4096, "n_layer": 8, "n_head": 16}, dtype="float16"),
    "phi2-training": Program(TRAINING, (2, 1024), "PhiConfig", PHI2),
    "mpt-prefill": Program(PREFILL, (2, 1024), "MptConfig", {"d_model": 2048, "n_layers": 16, "n_heads": 16}),
    "glm-decode-24": Program(DECODE, (24, 3000), "GlmConfig", GLM),
    "mixtral-training": Program(TRAINING, (4, 512), "MixtralConfig", MIXTRAL),
    "olmoe-prefill": Program(PREFILL, (2, 1500), "OlmoeConfig", OLMOE),
    "smollm3-training": Program(TRAINING, (3, 1024), "SmolLM3Config", SMOLLM3, autocast=True),
    "qwen2-1.5b-decode-48": Program(DECODE, (48, 1500), "Qwen2Config", QWEN2_15B),
    "qwen2-0.5b-prefill-compiled": Program(PREFILL, (8, 1024), "Qwen2Config", QWEN2_05B, compiled=True),
    "gemma-2b-training": Program(TRAINING, (1, 2048), "GemmaConfig", GEMMA_2B),
    "llama-1b-training-eager": Program(TRAINING, (2, 1024), "LlamaConfig", LLAMA_1B, attention="eager"),
    "gpt2-compiled-training": Program(TRAINING, (6, 768), "GPT2Config", {}, compiled=True, autocast=True),
    "xlm-roberta-training": Program(TRAINING, (12, 320), "XLMRobertaConfig", {"vocab_size": 250002}, MASKED),
    "mobilebert-forward": Program(FORWARD, (64, 256), "MobileBertConfig", {}, "AutoModel"),
    "deberta-v2-training": Program(TRAINING, (8, 320), "DebertaV2Config", {"hidden_size": 768, "num_hidden_layers": 12}, MASKED),
    "bert-base-training-fp32": Program(TRAINING, (12, 384), "BertConfig", {}, MASKED, dtype="float32"),
    "mpnet-forward-fp16": Program(FORWARD, (48, 384), "MPNetConfig", {}, "AutoModel", dtype="float16"),
    "modernbert-training": Program(TRAINING, (16, 512), "ModernBertConfig", {}, MASKED, autocast=True),
    "t5-large-training": Program(TRAINING, (4, 384), "T5Config", T5_BASE | {"d_model": 1024, "d_ff": 4096, "num_heads": 16}, SEQUENCES),
    "pegasus-training": Program(TRAINING, (6, 512), "PegasusConfig", {"encoder_layers": 8, "decoder_layers": 8}, SEQUENCES),
    "deit-base-training": Program(
        TRAINING, (48, 224), "DeiTConfig", {"architectures": ["DeiTForImageClassification"]}, IMAGES, autocast=True
    ),
    "swinv2-base-forward": Program(FORWARD, (32, 256), "Swinv2Config", SWIN_BASE | {"image_size": 256, "window_size": 8}, "AutoModel"),
    "mobilevit-forward": Program(FORWARD, (96, 256), "MobileViTConfig", {}, "AutoModel"),
    "pvt-v2-forward": Program(FORWARD, (64, 224), "PvtV2Config", {}, "AutoModel"),
    "regnet-training": Program(TRAINING, (64, 224), "RegNetConfig", {}, IMAGES, autocast=True),
    "efficientnet-forward": Program(FORWARD, (64, 300), "EfficientNetConfig", {"image_size": 300}, "AutoModel"),
    "mobilenet-v2-training": Program(TRAINING, (128, 224), "MobileNetV2Config", {}, IMAGES, autocast=True),
    "bit-forward": Program(FORWARD, (48, 224), "BitConfig", {}, "AutoModel"),
    "convnextv2-training": Program(TRAINING, (24, 224), "ConvNextV2Config", {}, IMAGES),
    "focalnet-forward": Program(FORWARD, (48, 224), "FocalNetConfig", {}, "AutoModel"),
    "yolos-forward": Program(FORWARD, (8, 512), "YolosConfig", {"image_size": [512, 512]}, "AutoModel"),
    "videomae-forward": Program(FORWARD, (6, 224), "VideoMAEConfig", {}, "AutoModel"),
    "timesformer-forward": Program(FORWARD, (6, 224), "TimesformerConfig", {}, "AutoModel"),
    "wav2vec2-forward": Program(FORWARD, (12, 160000), "Wav2Vec2Config", {}, "AutoModel"),
    "ast-forward": Program(FORWARD, (16, 1024), "ASTConfig", {}, "AutoModel"),
    "vit-base-training-compiled": Program(TRAINING, (32, 224), "ViTConfig", {}, IMAGES, compiled=True),
    "mixer-plain-training": Program(TRAINING, (128, 196), build=lambda torch: mixer(torch, 768, 12), autocast=True),
    "vae-plain-forward": Program(FORWARD, (2, 64), build=lambda torch: decoder(torch, 512)),
    "ranking-plain-training": Program(TRAINING, (8192, 26), build=lambda torch: ranking(torch, 128)),
    "unet-plain-narrow-training": Program(TRAINING, (16, 48), build=lambda torch: unet(torch, 128)),
    "dit-plain-wide-forward": Program(FORWARD, (8, 48), build=lambda torch: dit(torch, 1536, 24, 10)),
    "gpt-plain-narrow-training": Program(TRAINING, (24, 384), build=lambda torch: gpt(torch, 640, 10, 12), autocast=True),
}


HEADS = {
    "AutoModelForCausalLM": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", (PREFILL, DECODE, TRAINING)),
    "AutoModelForMaskedLM": ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", (FORWARD, TRAINING)),
    "AutoModelForSeq2SeqLM": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", (TRAINING,)),
    "AutoModelForImageClassification": ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", (FORWARD, TRAINING)),
    "AutoModel": ("MODEL_MAPPING_NAMES", (FORWARD,)),
}
"""Classes of transformers that make a model, with the list of models that each has and the phases of such programs."""
DRAWN, COUNT = (20261128, 20261129), 90
"""Seeds of the programs that report, one draw after the other, and programs of each; those that do not run as drawn are left out."""


@cache
def drawn() -> dict[str, Program]:
    """Programs of models that ``PROGRAMS`` and earlier draws lack, from all of transformers, in their classes' own configurations."""
    names = import_module("transformers.models.auto.modeling_auto")
    configs: dict[str, str] = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
    found: dict[str, Program] = {}
    for seed in DRAWN:
        random, seen = Random(seed), {program.model for program in (*PROGRAMS.values(), *found.values())}
        wanted = len(found) + COUNT
        while len(found) < wanted:
            head = random.choice(list(HEADS))
            listed, phases = HEADS[head]
            kind, phase = random.choice(sorted(getattr(names, listed))), random.choice(phases)
            batch, length = (
                random.choice((1, 2, 3, 4, 6, 8, 12, 16, 24, 32)),
                random.choice((128, 197, 256, 384, 500, 512, 768, 1000, 1024, 1536)),
            )
            precision = random.choice(({}, {}, {"dtype": "float16"}, {"autocast": True}, {"compiled": True}))
            name = f"{kind}-{phase}"
            if configs.get(kind) in {None, *seen} or name in found:
                continue
            batch *= 4 if "Image" in head else 1
            found[name] = Program(phase, (batch, length), configs[kind], {}, head, drawn=True, **precision)
    return found


def prepared(program: Program, torch: Any, device: str = "cuda") -> Step:
    """The program with its model and inputs on ``device``, as a function that runs one step."""
    torch.manual_seed(0)
    model = _model(program, torch, device)
    run = torch.compile(model) if program.compiled else model
    inputs = _inputs(program, model, torch, device)
    if program.phase == TRAINING:
        return _training(program, model, run, inputs, torch)
    if program.phase == DECODE:
        return _decode(run, inputs, torch)

    def forward() -> Any:
        with torch.no_grad():
            return run(**inputs)

    return forward


def _model(program: Program, torch: Any, device: str) -> Any:
    dtype, before = torch.float32 if program.autocast else getattr(torch, program.dtype), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = program.build(torch) if program.build is not None else _of_transformers(program)
    finally:
        torch.set_default_dtype(before)
    return model.train(program.phase == TRAINING)


MOST_LAYERS, MOST_WEIGHTS, SAMPLES = 16, 8e9, 100
"""Layers that a drawn program keeps, weights from which it is left out, and samples of sound in place of a token."""


def _of_transformers(program: Program) -> Any:
    transformers = import_module("transformers")
    config = getattr(transformers, program.model)(**program.config)
    if program.drawn and getattr(config, "num_hidden_layers", 0) > MOST_LAYERS:
        config.num_hidden_layers = MOST_LAYERS
    kind = transformers.AutoModel if program.head == "encoder" else getattr(transformers, program.head)
    if program.drawn:
        with import_module("torch").device("meta"):
            if sum(weight.numel() for weight in kind.from_config(config).parameters()) > MOST_WEIGHTS:
                raise ValueError("too large")
    model = kind.from_config(config, **({"attn_implementation": "eager"} if program.attention == "eager" else {}))
    return model.get_encoder() if program.head == "encoder" else model


def _inputs(program: Program, model: Any, torch: Any, device: str) -> dict[str, Any]:
    batch, size = program.shape
    dtype = torch.float32 if program.autocast else getattr(torch, program.dtype)
    config: Any = getattr(model, "config", None)
    if program.build is not None:
        example: dict[str, Any] = model.example(batch, size, dtype, device)
        return example
    if program.head == "encoder":
        return {"input_features": torch.randn(batch, config.num_mel_bins, size, device=device, dtype=dtype)}
    entry = getattr(model, "main_input_name", "input_ids")
    if program.drawn and entry == "pixel_values":
        own = getattr(config, "image_size", 224)
        size = own if isinstance(own, int) else own[0]
    if entry == "input_values":  # sound, or its spectra
        size *= SAMPLES if program.drawn and not hasattr(config, "num_mel_bins") else 1
        return {
            entry: torch.randn(batch, size, *([config.num_mel_bins] if hasattr(config, "num_mel_bins") else ()), device=device, dtype=dtype)
        }
    if hasattr(config, "num_frames"):
        return {entry: torch.randn(batch, config.num_frames, 3, size, size, device=device, dtype=dtype)}
    if hasattr(config, "num_channels"):
        found = {"pixel_values": torch.randn(batch, 3, size, size, device=device, dtype=dtype)}
        return found | ({"labels": torch.zeros(batch, dtype=torch.long, device=device)} if program.phase == TRAINING else {})
    most = [value for key in ("max_position_embeddings", "max_source_positions", "n_positions") if (value := getattr(config, key, None))]
    size = min([size, *most]) if program.drawn else size
    tokens = torch.randint(3, min(1000, getattr(config, "vocab_size", 1000)), (batch, size), device=device)
    found = {"input_ids": tokens} | ({"labels": tokens} if program.phase == TRAINING else {})
    return found | ({"use_cache": False} if program.phase == PREFILL else {})


def _decode(run: Any, inputs: dict[str, Any], torch: Any) -> Step:
    with torch.no_grad():
        cache = run(**inputs, use_cache=True).past_key_values
    token = inputs["input_ids"][:, :1]

    def step() -> Any:
        with torch.no_grad():
            return run(input_ids=token, past_key_values=cache, use_cache=True).logits

    return step


def _training(program: Program, model: Any, run: Any, inputs: dict[str, Any], torch: Any) -> Step:
    optimizer = getattr(torch.optim, program.optimizer)(model.parameters(), lr=1e-4)

    def step() -> Any:
        with torch.autocast("cuda", torch.bfloat16, enabled=program.autocast):
            found = run(**inputs)
        loss = found if program.build is not None else found.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def gpt(torch: Any, width: int, heads: int, layers: int) -> Any:
    """A decoder written by hand: layer norms, SDPA, GELU, learned positions; its result is the loss."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, n, _ = x.shape
            q, k, v = (part.view(b, n, heads, width // heads).transpose(1, 2) for part in self.qkv(self.first(x)).split(width, dim=2))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).contiguous().view(b, n, width))
            return x + self.down(functional.gelu(self.up(self.second(x))))

    class Gpt(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(50304, width), nn.Embedding(4096, width)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)
            self.head = nn.Linear(width, 50304, bias=False)

        def example(self, batch: int, size: int, dtype: Any, device: str) -> dict[str, Any]:
            return {"tokens": torch.randint(0, 1000, (batch, size), device=device)}

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.view(-1, logits.shape[-1]).float(), tokens.view(-1))

    return Gpt()


def dit(torch: Any, width: int, heads: int, layers: int) -> Any:
    """Diffusion transformer blocks: modulated layer norms, full attention, tanh GELU, on latents of 4 channels."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width, elementwise_affine=False)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
            self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

        def forward(self, x: Any, c: Any) -> Any:
            a, s, g, a2, s2, g2 = self.modulation(c).unsqueeze(1).chunk(6, dim=2)
            b, n, _ = x.shape
            q, k, v = self.qkv(self.norm(x) * (1 + s) + a).view(b, n, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, width)
            x = x + g * self.out(y)
            return x + g2 * self.mlp(self.norm(x) * (1 + s2) + a2)

    class Dit(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(4, width, 2, stride=2)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)
            self.head = nn.Linear(width, 32)

        def example(self, batch: int, size: int, dtype: Any, device: str) -> dict[str, Any]:
            latents = torch.randn(batch, 4, 2 * size, 2 * size, device=device, dtype=dtype)
            return {"x": latents, "c": torch.randn(batch, width, device=device, dtype=dtype)}

        def forward(self, x: Any, c: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            for block in self.blocks:
                x = block(x, c)
            return self.head(self.norm(x))

    return Dit()


def unet(torch: Any, width: int) -> Any:
    """Residual convolutions with group norms and SiLU at two resolutions; its result is the mean square."""
    nn = torch.nn

    class Residual(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.first, self.second = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
            self.a, self.b = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
            self.skip, self.silu = nn.Conv2d(inputs, outputs, 1), nn.SiLU()

        def forward(self, x: Any) -> Any:
            return self.skip(x) + self.b(self.silu(self.second(self.a(self.silu(self.first(x))))))

    class Unet(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.down = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, width, 3, stride=2, padding=1)
            self.high, self.low = Residual(width, width), Residual(width, 2 * width)
            self.up, self.merge = nn.Upsample(scale_factor=2), Residual(3 * width, width)
            self.out = nn.Conv2d(width, 4, 3, padding=1)

        def example(self, batch: int, size: int, dtype: Any, device: str) -> dict[str, Any]:
            return {"x": torch.randn(batch, 4, size, size, device=device, dtype=dtype)}

        def forward(self, x: Any) -> Any:
            high = self.high(self.stem(x))
            low = self.low(self.down(high))
            return self.out(self.merge(torch.cat([self.up(low), high], dim=1))).float().square().mean()

    return Unet()


def mixer(torch: Any, width: int, layers: int) -> Any:
    """An MLP-Mixer: products over places and over channels by turns; its result is the mean square."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, places: int) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.over_places = nn.Sequential(nn.Linear(places, width // 2), nn.GELU(), nn.Linear(width // 2, places))
            self.over_channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            x = x + self.over_places(self.first(x).transpose(1, 2)).transpose(1, 2)
            return x + self.over_channels(self.second(x))

    class Mixer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*(Block(196) for _ in range(layers)))

        def example(self, batch: int, size: int, dtype: Any, device: str) -> dict[str, Any]:
            return {"x": torch.randn(batch, size, width, device=device, dtype=dtype)}

        def forward(self, x: Any) -> Any:
            return self.blocks(x).float().square().mean()

    return Mixer()


def decoder(torch: Any, width: int) -> Any:
    """The decoder of a picture's latents: convolutions with group norms, their width halved as the resolution doubles, three times."""
    nn = torch.nn

    class Residual(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.chain = nn.Sequential(nn.GroupNorm(32, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
            self.chain.extend((nn.GroupNorm(32, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)))
            self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

        def forward(self, x: Any) -> Any:
            return self.skip(x) + self.chain(x)

    class Decoder(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            parts, inputs = [nn.Conv2d(4, width, 3, padding=1), Residual(width, width)], width
            for outputs in (width, width // 2, width // 4):
                parts += [Residual(inputs, outputs), Residual(outputs, outputs), nn.Upsample(scale_factor=2)]
                parts.append(nn.Conv2d(outputs, outputs, 3, padding=1))
                inputs = outputs
            self.parts = nn.Sequential(*parts, nn.GroupNorm(32, inputs), nn.SiLU(), nn.Conv2d(inputs, 3, 3, padding=1))

        def example(self, batch: int, size: int, dtype: Any, device: str) -> dict[str, Any]:
            return {"x": torch.randn(batch, 4, size, size, device=device, dtype=dtype)}

        def forward(self, x: Any) -> Any:
            return self.parts(x)

    return Decoder()


def ranking(torch: Any, width: int) -> Any:
    """A recommender: a table for each feature, their products with one another, and layers above; its result is the loss."""
    nn = torch.nn

    class Ranking(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(100_000, width) for _ in range(26))
            self.below = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
            self.above = nn.Sequential(nn.Linear(27 * 27 + width, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))

        def example(self, batch: int, size: int, dtype: Any, device: str) -> dict[str, Any]:
            picks = torch.randint(0, 100_000, (batch, size), device=device)
            return {"dense": torch.randn(batch, 13, device=device, dtype=dtype), "picks": picks}

        def forward(self, dense: Any, picks: Any) -> Any:
            low = self.below(dense)
            x = torch.stack([low, *(table(picks[:, place]) for place, table in enumerate(self.tables))], dim=1)
            found = self.above(torch.cat([low, torch.bmm(x, x.transpose(1, 2)).flatten(1)], dim=1))
            return nn.functional.binary_cross_entropy_with_logits(found.float(), torch.ones_like(found, dtype=torch.float32))

    return Ranking()
