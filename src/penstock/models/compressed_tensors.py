"""Checkpoints in the formats of compressed-tensors, as LLM Compressor writes them.

A configuration has groups of modules, each with its own way of rounding weights. A module is in the
group that names it, else in the one with a regular expression that its name begins with, else in
the one that targets all of its class, which is ``Linear`` or ``Embedding``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.models.float_codes import IDLE, KV_SCALES_UNUSED, Fp8, Mxfp4, Nvfp4, Tile
from penstock.models.integer_groups import is_kept, read_bits
from penstock.models.integer_matrix import Integers, Span
from penstock.models.modules import EVERY, Modules, beginning
from penstock.models.names import NameMap
from penstock.models.packed_matrix import MatrixFormat
from penstock.models.quantized_modules import QuantizedModules, Rule
from penstock.models.reader import ConfigReader
from penstock.models.sparse24 import FORMAT as SPARSE_FORMAT
from penstock.models.sparse24 import Sparse24

METHOD: Final = "compressed-tensors"
MIXED: Final = "mixed-precision"
_REGEX: Final = "re:"
_LINEAR: Final = "Linear"
_EMBEDDING: Final = "Embedding"
_FORMATS: Final = (
    "pack-quantized", "int-quantized", "naive-quantized", "float-quantized",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized",
)  # fmt: skip
_OBSERVED: Final = ("observer", "observer_kwargs", "scale_dtype", "zp_dtype", "dynamic")
_SHARED: Final = ("strategy", "symmetric", "group_size", "block_structure", "actorder")
_DONE: Final = ("compressed", "frozen")
"""What ``quantization_status`` is of weights that have been rounded."""
_NAMED, _MATCHED, _CLASS = 1, 2, 3


def read(config: ConfigReader, names: NameMap) -> QuantizedModules:
    """Read ``quantization_config``; raises ModelError for what would be read wrongly."""
    sparsity = config.section("sparsity_config")
    sparse = sparsity is not None and sparsity.raw("format") == SPARSE_FORMAT
    groups = config.section("config_groups")
    rules = [Rule(_ignored(config), None)]
    if groups is None or not groups.names:
        if sparsity is None or not sparse:
            raise config.error("config_groups", "must have a group of modules")
        config.only("format", "dense", "must be dense where no module is quantized")
        rules += _sparse_floats(sparsity, names)
        return _read(config, rules, names)
    usual = config.text("format")
    for name in groups.names:
        section = groups.section(name)
        if section is None:
            raise groups.error(name, "must be an object with targets and weights")
        rules += _group(section, usual, names)
    if sparsity is not None and sparse:
        rules = _sparse_integers(sparsity, rules)
    elif sparsity is not None and _says_pruned(sparsity, rules[0].modules):
        rules = [_pruned(rule) for rule in rules]
    return _read(config, rules, names)


def _read(config: ConfigReader, rules: list[Rule], names: NameMap) -> QuantizedModules:
    """The rest of the configuration, with these rules."""
    rules.sort(key=lambda rule: rule.level)
    for field in ("sparsity_config", "transform_config", "moe_sparsity_config"):
        section = config.section(field)
        if section is not None and section.raw("format") == SPARSE_FORMAT:
            continue
        if section is not None and section.names and section.raw("format") != "dense":
            raise config.error(field, "is not supported; take a checkpoint without it")
    cached = _has_cache_scales(config)
    if config.raw("quantization_status") not in (None, *_DONE):
        raise config.error(
            "quantization_status",
            f"must be {' or '.join(_DONE)}: weights of others are not rounded, or not yet",
        )
    config.finish(("global_compression_ratio", "version"))
    return QuantizedModules(
        METHOD,
        tuple(rules),
        names,
        head=True,
        table=_table(config, rules, names),
        idle=IDLE,
        notes=(KV_SCALES_UNUSED,) if cached else (),
    )


def _table(config: ConfigReader, rules: Sequence[Rule], names: NameMap) -> MatrixFormat | None:
    """The format of the embedding, which ``Linear`` does not mean."""
    module = names.module("embed")
    for rule in rules:
        if module is not None and module in replace(rule.modules, every=False):
            if rule.form is not None and rule.form.any_order:
                raise config.error(
                    "config_groups",
                    f"has {module} with actorder, which is not supported for an embedding",
                )
            return rule.form
    return None


def _sparse_floats(section: ConfigReader, names: NameMap) -> list[Rule]:
    """The rules of a checkpoint in floats, whose matrices are stored without half their zeros."""
    ignored, targets = _sparse_modules(section)
    return [Rule(ignored, None), *_rules_of(section, targets, Sparse24(), names)]


def _sparse_integers(section: ConfigReader, rules: list[Rule]) -> list[Rule]:
    """The same rules, where codes are stored so. Raises ModelError where some are not."""
    ignored, targets = _sparse_modules(section)
    quantized = rules[0].modules
    if targets != (_LINEAR,) or not ignored.names <= quantized.names or ignored.patterns:
        raise section.error(
            "targets",
            "and ignore are supported beside quantized matrices only where these are the sparse "
            f"ones, too: targets {_LINEAR}, and nothing in ignore that is quantized",
        )
    found: list[Rule] = []
    for rule in rules:
        form = rule.form
        if form is None:
            found.append(rule)
        elif isinstance(form, Integers) and form.bits == 8 and not form.packed:
            found.append(replace(rule, form=replace(form, sparse=True, pruned=True)))
        else:
            raise section.error(
                "format", f"is supported with floats, and with integers of 8 bits, not with {form}"
            )
    return found


def _says_pruned(section: ConfigReader, ignored: Modules) -> bool:
    """Whether all matrices that are quantized are 2:4 sparse, though their zeros are stored."""
    own = _ignored(section)
    return (
        section.raw("format") == "dense"
        and section.raw("sparsity_structure") == "2:4"
        and section.texts("targets") == (_LINEAR,)
        and own.names <= ignored.names
        and not own.patterns
    )


def _pruned(rule: Rule) -> Rule:
    """The rule of all modules of the class, whose matrices are sparse."""
    form = rule.form
    if isinstance(form, Integers) and not form.any_order and rule.modules == EVERY:
        return replace(rule, form=replace(form, pruned=True))
    return rule


def _sparse_modules(section: ConfigReader) -> tuple[Modules, tuple[str, ...]]:
    """The modules that are not sparse, and the targets of those that are."""
    section.only("sparsity_structure", "2:4", "must be 2:4")
    ignored, targets = _ignored(section), section.texts("targets") or ()
    section.finish(("format", "global_sparsity", "registry_requires_subclass"))
    return ignored, targets


def _has_cache_scales(config: ConfigReader) -> bool:
    """Whether the checkpoint has scales for keys and values of 8 bits, which are left out: whoever
    asks for a cache of 8 bits gets one with scales of its own."""
    scheme = config.section("kv_cache_scheme")
    if scheme is None:
        return False
    kind, bits = scheme.text("type", "int").lower(), scheme.integer("num_bits", 8)
    if kind not in ("int", "float") or bits != 8:
        raise scheme.error(
            "num_bits",
            f"is not supported with type {kind!r}; supported are 8 bits, float and int",
        )
    scheme.finish((*_OBSERVED, *_SHARED))
    return True


def _ignored(config: ConfigReader) -> Modules:
    """The modules of ``ignore``; a class there other than Linear has no quantized modules."""
    named, expressions = [], []
    for entry in config.texts("ignore") or ():
        if entry.startswith(_REGEX):
            expressions.append(beginning(config, "ignore", entry.removeprefix(_REGEX)))
        else:
            named.append(entry)
    return Modules(frozenset(named), tuple(expressions), every=_LINEAR in named)


def _group(section: ConfigReader, usual: str, names: NameMap) -> list[Rule]:
    """The rules of one group."""
    targets = section.texts("targets") or ()
    section.raw("format")  # null where it is the usual one
    own = section.text("format") if section.has("format") else usual
    if section.raw("output_activations") is not None:
        raise section.error("output_activations", "is not supported; take a checkpoint without it")
    section.raw("input_activations")  # how they are rounded is an option here
    weights = section.section("weights")
    section.finish()
    if weights is None:
        return []
    if own == MIXED:
        raise section.error("format", f"is required beside {MIXED}: {', '.join(_FORMATS)}")
    form = _form(weights, own)
    weights.finish(_OBSERVED)
    return _rules_of(section, targets, form, names)


def _rules_of(
    section: ConfigReader, targets: Sequence[str], form: MatrixFormat, names: NameMap
) -> list[Rule]:
    """The rules of ``targets`` of a section."""
    rules = []
    for target in targets:
        if target.startswith(_REGEX):
            found = beginning(section, "targets", target.removeprefix(_REGEX))
            rules.append(Rule(Modules(patterns=(found,)), form, _MATCHED))
        elif target == _LINEAR:
            rules.append(Rule(EVERY, form, _CLASS))
        elif target == _EMBEDDING:
            tables = frozenset(filter(None, (names.module("embed"),)))
            rules.append(Rule(Modules(tables), form, _CLASS))
        elif "." in target or target == names.module("head"):
            rules.append(Rule(Modules(frozenset((target,))), form, _NAMED))
        else:
            raise section.error(
                "targets",
                f"has {target!r}, which is not supported; supported are {_LINEAR}, {_EMBEDDING}, "
                f"names of modules, and regular expressions behind {_REGEX}",
            )
    return rules


def _form(weights: ConfigReader, form: str) -> MatrixFormat:
    """How matrices of a group are stored."""
    kind, bits = weights.text("type", "int").lower(), weights.integer("num_bits", 8)
    symmetric = weights.boolean("symmetric", True)
    weights.only("dynamic", False, "must be false: weights are rounded once")
    span, tile = _span(weights)
    if form not in _FORMATS:
        raise weights.error("format", _unknown(form))
    if kind == "float" and not symmetric:
        raise weights.error("symmetric", "must be true for floating-point types")
    order = weights.raw("actorder")
    by_index = order is True or (isinstance(order, str) and order.lower() in ("group", "dynamic"))
    if order not in (None, False, True) and not isinstance(order, str):
        raise weights.error("actorder", "must be text")
    if kind == "int" and form in ("pack-quantized", "int-quantized", "naive-quantized"):
        return _integers(weights, form, span, symmetric, by_index)
    if kind == "float" and not by_index:
        found = _floats(form, bits, tile)
        if found is not None:
            return found
    raise weights.error(
        "num_bits",
        f"is not supported with type {kind!r}, strategy {weights.raw('strategy')!r}, group_size "
        f"{weights.raw('group_size')!r} and format {form!r}; take another checkpoint",
    )


def _unknown(form: str) -> str:
    return f"{form!r} is not supported; supported are {', '.join(_FORMATS)} and {MIXED}"


def _span(weights: ConfigReader) -> tuple[Span, Tile]:
    """What shares a scale, of integers and of floats."""
    group, block = weights.optional_integer("group_size", low=-1), weights.raw("block_structure")
    usual = "tensor" if group is None else "channel" if group == -1 else "group"
    strategy = weights.text("strategy", usual).lower() if weights.has("strategy") else usual
    weights.raw("strategy")
    match strategy:
        case "tensor":
            return "matrix", (None, None)
        case "channel":
            return "row", (1, None)
        case "group" | "tensor_group" if group is not None and group > 0:
            return group, (1, group)
        case "block" if isinstance(block, list | str):
            sizes = block.split("x") if isinstance(block, str) else block
            if len(sizes) == 2 and all(str(size).isdecimal() and int(size) for size in sizes):
                rows, columns = map(int, sizes)
                return "matrix", (rows, columns)
            raise weights.error("block_structure", "must be two integers, rows and columns")
    raise weights.error(
        "strategy", "must be tensor, channel, group with a group_size, or block with its structure"
    )


def _integers(
    weights: ConfigReader, form: str, span: Span, symmetric: bool, by_index: bool
) -> Integers:
    bits = read_bits(weights, "num_bits", 8)
    if bits < 4 and form != "pack-quantized":
        raise weights.error("num_bits", f"{bits} is not supported with format {form!r}")
    if weights.raw("strategy") == "block":
        raise weights.error("strategy", "is not supported for integers: blocks are of FP8")
    if isinstance(span, int) and not is_kept(span) and (bits == 8 or by_index):
        raise weights.error(
            "group_size",
            "is not supported with 8 bits or with actorder; supported are 32, 64, 128 and "
            "multiples of 128",
        )
    by_index = by_index and isinstance(span, int)
    return Integers(bits, span, not symmetric, form == "pack-quantized", by_index)


def _floats(form: str, bits: int, tile: Tile) -> MatrixFormat | None:
    match form, bits, tile:
        case ("float-quantized" | "naive-quantized", 8, _):
            return Fp8(tile, "weight_scale")
        case ("mxfp8-quantized", 8, (1, 32)):
            return Fp8(tile, "weight_scale", powers=True)
        case ("nvfp4-pack-quantized", 4, (1, 16)):
            return Nvfp4("weight_packed", "weight_global_scale", divides=True)
        case ("mxfp4-pack-quantized", 4, (1, 32)):
            return Mxfp4()
    return None
