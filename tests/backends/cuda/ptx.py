"""Enough of PTX to run the assembly of ``kernels/operands.py`` in NumPy, on every lane at once."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from types import ModuleType

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]


@dataclass(frozen=True)
class Assembly:
    text: str
    constraints: str
    pack: int

    @property
    def outputs(self) -> int:
        return self.constraints.count("=r")

    def run(self, *inputs: U32) -> list[U32]:
        """The output registers of these input registers."""
        assert len(inputs) == self.constraints.count("r") - self.outputs
        registers = {f"${self.outputs + i}": value for i, value in enumerate(inputs)}
        for line in self.text.replace("{", "").replace("}", "").split(";"):
            opcode, _, operands = line.strip().partition(" ")
            if opcode and opcode != ".reg":
                target, *sources = (operand.strip() for operand in operands.split(","))
                values = [
                    registers[s] if s in registers else np.full(1, int(s, 0), np.uint32)
                    for s in sources
                ]
                registers[target] = _execute(opcode, values)
        return [registers[f"${i}"] for i in range(self.outputs)]


def assembly_of(module: ModuleType, function: str) -> Assembly:
    """The one inline assembly of a function of ``module``, as its source has it."""
    tree = ast.parse(inspect.getsource(module))
    (definition,) = (
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function
    )
    (call,) = (
        node
        for node in ast.walk(definition)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.inline_asm_elementwise"
    )
    (pack,) = (k.value for k in call.keywords if k.arg == "pack")
    text, constraints = call.args[:2]
    return Assembly(ast.literal_eval(text), ast.literal_eval(constraints), ast.literal_eval(pack))


def _execute(opcode: str, v: list[U32]) -> U32:
    if opcode == "mov.b32":
        return v[0]
    if opcode == "shr.u32":
        return v[0] >> v[1]
    if opcode == "shl.b32":
        return v[0] << v[1]
    if opcode == "and.b32":
        return v[0] & v[1]
    if opcode == "xor.b32":
        return v[0] ^ v[1]
    if opcode == "add.u32":
        return v[0] + v[1]
    if opcode == "sub.u32":
        return v[0] - v[1]
    if opcode == "or.b32":
        return v[0] | v[1]
    if opcode == "mul.lo.u32":
        return v[0] * v[1]
    if opcode == "prmt.b32":
        pool = v[0].astype(np.uint64) | v[1].astype(np.uint64) << np.uint64(32)
        shifts = [np.uint64(8 * (v[2].item() >> 4 * i & 7)) for i in range(4)]
        picked = [pool >> shift & np.uint64(255) for shift in shifts]
        return sum(p << np.uint64(8 * i) for i, p in enumerate(picked)).astype(np.uint32)
    if opcode == "lop3.b32":
        out = np.zeros_like(v[0])
        for i in range(8):  # bit i of the table is what inputs of bits (a, b, c) = i give
            if v[3].item() >> i & 1:
                a, b, c = (x if i >> s & 1 else ~x for x, s in zip(v[:3], (2, 1, 0), strict=True))
                out = out | (a & b & c)
        return out
    assert opcode == "fma.rn.bf16x2", opcode
    low, high = (_bits(_floats(v[0], s) * _floats(v[1], s) + _floats(v[2], s)) for s in (0, 16))
    return low | high << np.uint32(16)


def _floats(register: U32, shift: int) -> NDArray[np.float64]:
    half = (register >> np.uint32(shift)).astype(np.uint16)
    return half.view(ml_dtypes.bfloat16).astype(np.float64)


def _bits(value: NDArray[np.float64]) -> U32:
    """Rounded to bfloat16 once: numbers here are short enough for float32 to be exact."""
    assert (value == value.astype(np.float32)).all()
    return value.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32)
