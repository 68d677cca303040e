"""What kernels declare is what their sources read, what lowerings emit, and all that programs may call."""

import itertools
import subprocess
import sys

import pytest

from engine.native import specimens
from engine.native.kernel_reads import words_of
from isthmus.engine.native.compiler import _device_function
from isthmus.engine.native.kernels import base
from isthmus.engine.native.lowering import elementwise
from isthmus.engine.native.program import BRANCHES, PIPELINE
from isthmus.engine.native.signatures import KERNELS, SIGNATURES, arithmetic, parts_of
from isthmus.engine.native.signatures.convolution import _crossing
from isthmus.engine.native.target import TARGETS, by_name
from isthmus.engine.native.verification import _check_of, verify
from isthmus.engine.native.words import Count, Number, Numbers, ReadOperand, Real, Signature

BY_NAME = {f"{s.kernel} {next(iter(s.variants))}".strip(): s for s in SIGNATURES}
NOT_READ = {
    "matmul:vector": {"rows", "a_row", "c_row", "tile_block", "depth_block"},
    "tiles:repeat": {"instructions", "times"},
    "tiles:vary": {"changes"},
    "winograd:gather": {"batches"},
    "winograd:scatter": {"batches"},
}
"""Words that a kernel has only in common with another, for the executor, or for the verifier."""


SIGNATURE = Signature(
    "test:words",
    (
        ReadOperand("x", "8"), Real("scale"), Numbers("size", 2), Count("rank"), Numbers("dims", "rank"),
        Numbers("strides", "rank"), Number("last"),
    ),
)  # fmt: skip


def kernels_of(signature):
    return [f"{signature.kernel}.{variant}" if variant else signature.kernel for variant in signature.variants]


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("target", ["avx512-vnni", "portable"])
def test_a_kernel_has_a_parameter_for_each_word_and_uses_it(name, target) -> None:
    signature = BY_NAME[name]
    expected = {word.name for word in signature.words} - NOT_READ.get(signature.kernel, set())
    kernels, used = kernels_of(signature), set()
    for number, kernel in enumerate((kernels[0], kernels[-1], *kernels[1:-1])):
        parameters, now_used = words_of(kernel, by_name(target))
        assert parameters == expected, f"{kernel} does not read all its words, or others"
        used |= now_used
        if number and used >= parameters:
            break
    assert used >= expected, f"{signature.kernel} has parameters that no variant uses"


def test_a_kernel_gets_each_word_as_its_kind_says() -> None:
    expressions = base._expressions(SIGNATURE)
    assert expressions == {
        "x": "address(p, b, 0)",
        "scale": "real(p, 1)",
        "size": "(word(p, 2), word(p, 3))",
        "rank": "word(p, 4)",
        "dims": "p + 8 * (5)",
        "strides": "p + 8 * (5 + word(p, 4))",
        "last": "word(p, 5 + word(p, 4) + word(p, 4))",
    }


def test_a_parameter_that_is_no_word_needs_a_default() -> None:
    with pytest.raises(TypeError, match="'wrong' is no word of 'test:words'"):
        base.kernel(SIGNATURE)(lambda wrong, tid: None)
    base.kernel(SIGNATURE)(lambda tid, wrong=0: None)


@pytest.mark.parametrize("target", ["avx512-vnni", "avx2", "portable", "neon-dot"])
def test_every_declared_variant_is_one_that_the_kernel_can_be_made_for(target) -> None:
    for kernel in KERNELS:
        assert hasattr(_device_function(kernel, by_name(target)), "py_func"), kernel


def test_words_of_a_declaration_are_unique_and_all_names_in_it_are_defined() -> None:
    for signature in SIGNATURES:
        check = _check_of(signature)
        words = [word.name for word in signature.words]
        assert len(set(words)) == len(words), signature.kernel
        clash = {*words, *signature.where} & ({*arithmetic.__all__, "shares", "lanes"} | set(signature.functions))
        assert not clash, f"{signature.kernel}: {clash} has two meanings"
        assert len({tuple(sorted(parts)) for parts in signature.variants.values()}) == 1, "variants differ in parts"
        known = {*check.__code__.co_varnames, *check.__globals__, *dir(__builtins__), "IndexError"}
        memory = {"read", "write", "work", "table", "least", "most", "min", "max"}
        builtin = set(__builtins__ if isinstance(__builtins__, dict) else dir(__builtins__))
        used = set(check.__code__.co_names)
        assert used <= known | memory | builtin, f"{signature.kernel} uses names that nobody defines"


def test_each_declared_kernel_has_a_specimen_that_every_target_finds_safe() -> None:
    for target in TARGETS:
        for threads in (1, 3):
            seen = set()
            for name, program in specimens.programs(target, threads):
                verify(program)
                seen |= {KERNELS[kernel] for kernel in program.kernels}
                assert program.kernels, name
            missing = [
                s.kernel for s in SIGNATURES if s not in seen and (threads > 1 or s.kernel not in (PIPELINE, BRANCHES))
            ]
            assert missing in ([], ["movement:interleave"]), f"{target.name}: no specimen of {missing}"


def test_names_are_a_closed_list_of_bounded_variants() -> None:
    assert "matmul:packed.8x3" in KERNELS
    for name in ("matmul:packed.300x300", "matmul:packed", "executor:run", "doorbell:serve", "movement:copy.3"):
        assert name not in KERNELS
    assert max(parts.get("vectors", 0) for k in KERNELS for parts in [parts_of(k)]) <= 4
    assert len(KERNELS) <= 1600


def test_declarations_are_read_without_the_compiler() -> None:
    script = (
        "import sys, isthmus.engine.native.verification, isthmus.engine.native.describe\n"
        "assert not {'numba', 'llvmlite'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_function_that_the_lowering_takes_has_a_kernel() -> None:
    for name, function in elementwise.FUNCTIONS.items():
        if function.traits.limits is not None or name in ("ElementWiseSelect", "ReluMinMax"):
            continue
        kernel = elementwise.kernel_of(name)
        for kind in elementwise.KINDS_OF[name]:
            form = "unary" if function.inputs == (1, 1) else "binary"
            if kernel in ("sin", "cos") and kind in elementwise.FLOATS:
                form = "trigonometric"
            assert f"elementwise:{form}.{kernel}_{kind}" in KERNELS


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("pad", [-1, 0, 1, 4])
def test_windows_that_cross_an_edge_are_counted_one_by_one(stride, pad) -> None:
    for size, kernel, dilation, after in itertools.product((1, 2, 7, 8), (1, 2, 3), (1, 2), (0, 2)):
        reach = (kernel - 1) * dilation
        out = (size + pad + after - reach - 1) // stride + 1
        starts = [position * stride - pad for position in range(out)]
        crossing = sum(start < 0 or start + reach > size - 1 for start in starts)
        assert _crossing(size, max(out, 0), kernel, stride, dilation, pad) == crossing
