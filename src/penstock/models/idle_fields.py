"""Fields of a ``config.json`` that say nothing of what a model computes.

A field whose name begins with an underscore, or that is null, is passed over without being here.
"""

from __future__ import annotations

from typing import Final

_PROVENANCE = """
    transformers_version tokenizer_class is_llama_config transformers.js_config auto_map model_name
    base_model base_model_name_or_path unsloth_fixed unsloth_version unsloth_training merge_method
    finetuning_type peft_type lora_alpha lora_dropout lora_rank
"""
_RUNNING_ELSEWHERE = """
    use_cache return_dict output_attentions output_hidden_states output_scores output_router_logits
    return_dict_in_generate torchscript use_bfloat16 tf_legacy_loss chunk_size_feed_forward
    is_decoder attn_implementation use_flash_attn use_flash_attention use_flash_attention_2
    flash_attn use_xformers gradient_checkpointing cache_implementation
"""
_TRAINING = """
    initializer_range attention_dropout hidden_dropout embd_pdrop resid_pdrop attn_pdrop
    attention_probs_dropout_prob hidden_dropout_prob classifier_dropout ffn_dropout
    embedding_dropout residual_dropout neftune_noise_alpha finetuning_task problem_type id2label
    label2id num_labels task_specific_params router_aux_loss_coef aux_loss_alpha seq_aux
    router_jitter_noise z_loss_coeff summary_type summary_use_proj summary_activation
    summary_proj_to_labels summary_first_dropout
"""
_TOKENS_OF_PADDING_AND_TOKENIZERS = """
    pad_token_id unk_token_id sep_token_id cls_token_id mask_token_id decoder_start_token_id prefix
    model_max_length tokenizer_model_max_length tokenizer_padding_side padding_side
"""
# How to sample: generation_config.json and each request say so.
_SAMPLING_DEFAULTS = """
    max_length min_length max_new_tokens do_sample early_stopping num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
    forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
"""
IDLE_FIELDS: Final = frozenset(
    (
        _PROVENANCE
        + _RUNNING_ELSEWHERE
        + _TRAINING
        + _TOKENS_OF_PADDING_AND_TOKENIZERS
        + _SAMPLING_DEFAULTS
    ).split()
)
"""Fields of any family that do not change logits, whatever their value."""
