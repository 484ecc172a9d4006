"""The frozen target: what it computes for windows of text, by way of transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from penstock.errors import ConfigError, ModelError, first_line
from penstock.train.draft_heads import Observed, Readout
from penstock.weights.model_folder import load_model_spec


class Target:
    """A checkpoint that heads are trained for.

    On a CPU its weights are float32, so that greedy choices are not ties of rounded logits; on
    other devices they have the checkpoint's type. Raises ModelError if Penstock does not serve
    the model, or transformers cannot load it.
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.spec = load_model_spec(folder)
        self.folder = folder
        self.device = device
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                folder, dtype="float32" if device == "cpu" else "auto", local_files_only=True
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ModelError(
                f"transformers cannot load {folder}: {first_line(error)}; heads are trained for "
                "checkpoints with a config.json and .safetensors weights"
            ) from error
        nn.Module.to(model, device)
        model.eval()
        self.model = model.requires_grad_(False)
        self.num_layers: int = model.config.num_hidden_layers

    @property
    def embedding(self) -> Tensor:
        """The embedding matrix, ``[V, H]``."""
        module = self.model.get_input_embeddings()
        assert isinstance(module, nn.Embedding)
        return module.weight

    @property
    def output(self) -> Tensor:
        """The output matrix, ``[V, H]``."""
        module = self.model.get_output_embeddings()
        assert isinstance(module, nn.Linear)
        return module.weight

    @property
    def readout(self) -> Readout:
        """What makes logits of what the output matrix reads."""
        module = self.model.get_output_embeddings()
        assert isinstance(module, nn.Linear)
        return Readout(module.weight, module.bias, self.spec.logits_scale, self.spec.logits_softcap)

    @property
    def norm(self) -> Tensor:
        """Weights of the final norm, ``[H]``."""
        weight = self.model.get_submodule("model.norm").weight
        assert isinstance(weight, Tensor)
        return weight

    def default_layers(self) -> tuple[int, int, int]:
        """The layers whose input EAGLE 3 reads where nothing else is said: an early one, the
        middle, and a late one."""
        if self.num_layers < 4:
            raise ConfigError(
                f"the model has {self.num_layers} layers, and EAGLE 3 reads the inputs of layers "
                f"2, {self.num_layers // 2} and {self.num_layers - 3}; name others with --layers"
            )
        return (min(2, self.num_layers - 1), self.num_layers // 2, self.num_layers - 3)

    def draft_config(self) -> LlamaConfig:
        """Return the configuration of one Llama layer as wide as this model's layers."""
        config = self.model.config
        heads = config.num_attention_heads
        return LlamaConfig(
            vocab_size=len(self.output),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=1,
            num_attention_heads=heads,
            num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            hidden_act=config.hidden_act,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters=config.rope_parameters,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            tie_word_embeddings=False,
        )

    @torch.no_grad()
    def observe(self, tokens: Tensor, layers: tuple[int, ...] = ()) -> Observed:
        """Run ``tokens`` int64 ``[B, T]``. ``layers`` are those to tap, each in [0, num_layers).

        What transformers calls ``hidden_states[i]`` is the input of layer ``i``, and the last one
        is that of the output matrix.
        """
        tokens = tokens.to(self.device)
        out = self.model(input_ids=tokens, output_hidden_states=True, use_cache=False)
        states = out.hidden_states
        hidden = states[-1].float()
        taps = [states[layer].float() for layer in layers]
        return Observed(
            tokens=tokens,
            hidden=hidden,
            taps=torch.cat(taps, -1) if taps else hidden[..., :0],
            logits=out.logits,
        )
