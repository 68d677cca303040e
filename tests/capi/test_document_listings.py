"""Listings of QNN's own documents, cut out of their text, compile and link with our headers and libraries.

The text is not part of this project; without it the tests are skipped. A slip is a place where a listing cannot be
compiled with any header, QNN's own included: each is named here with its remedy, and nothing else is changed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.documents import COPIES

from isthmus.capi.installation import INCLUDE

pytestmark = pytest.mark.skipif(COPIES is None, reason="the documents are not here")


@dataclass(frozen=True)
class Listing:
    """A listing: where it is, what the text around it presupposes, and its slips with their remedies."""

    title: str
    document: str
    first: int
    last: int
    given: str
    slips: dict[str, str] = field(default_factory=dict)
    numbered: bool = False
    """Whether its lines begin with their numbers."""


PROPERTY = "Qnn_GraphHandle_t graphHandle; uint32_t *{0}Size;"
CONFIG = "Qnn_GraphHandle_t graphHandle; QnnLpaiMem_MemType_t memType; uint32_t {0}Size; void *{0}Buffer;"
# `error` is looked at, and never set.
ALIGNMENT = "Qnn_BackendHandle_t backendHandle; Qnn_ErrorHandle_t error; size_t *startAddrAlignment, *sizeAlignment;"
TFLITE = """
struct TfLiteCustomAllocation { void *data; size_t bytes; };
namespace tflite {
constexpr size_t kDefaultTensorAlignment = 64;
struct Interpreter {
  int SetCustomAllocationForTensor(int, const TfLiteCustomAllocation &) { return 0; }
  int AllocateTensors() { return 0; }
  int ModifyGraphWithDelegate(TfLiteDelegate *) { return 0; }
  int Invoke() { return 0; }
};
}
tflite::Interpreter *interpreter_; size_t num_bytes; int tensor_idx;
"""
OPENCL = """
typedef unsigned long cl_mem_flags;
typedef int cl_int;
enum { CL_SUCCESS = 0, CL_TRUE = 1, CL_MAP_READ = 1, CL_MEM_READ_WRITE = 1 };
namespace cl {
struct Context {};
struct Event {};
struct Buffer { Buffer(const Context &, cl_mem_flags, size_t, void *, cl_int *) {} };
struct CommandQueue {
  void *enqueueMapBuffer(const Buffer &, int, int, size_t, size_t, std::vector<Event> *, Event *, int *) { return 0; }
  cl_int enqueueUnmapMemObject(const Buffer &, void *, std::vector<Event> *, Event *) { return 0; }
};
}
cl::Context *context_of_the_program; cl::CommandQueue *queue_of_the_program;
"""
GPU_SLIPS = {
    "Qnn_Tensor_t inputTensor;": "Qnn_Tensor_t inputTensor, outputTensor;",  # the second is used, and never declared
    "auto clContext = ...;": "auto clContext = context_of_the_program;",  # left to the reader
    "auto openCLCommandQueue = ...;": "auto openCLCommandQueue = queue_of_the_program;",
    "const cl_mem_flags = CL_MEM_READ_WRITE;": "const cl_mem_flags memFlags = CL_MEM_READ_WRITE;",
    "new cl::buffer(": "new cl::Buffer(",
    "inputTensor.rank, inputTensor.dimensions,": "inputTensor.v1.rank, inputTensor.v1.dimensions,",
    "inputTensor.dataType;": "inputTensor.v1.dataType;",
    "customInfo.buffer = reinterpret_cast<QnnGpuMem_Buffer_t>(outputTensorBuffer);":
        "customInfo.buffer = reinterpret_cast<QnnGpuMem_Buffer_t>(outputTensorCLBuffer);",  # not the malloc'ed memory
    "memDescriptor.customInfo = customInfo;": "memDescriptor.customInfo = &customInfo;",
    "outputTensor.memType =": "outputTensor.v1.memType =",
    "outputTensor.memHandle =": "outputTensor.v1.memHandle =",
    "enqueueMapBuffer(*outputTensorBuffer,": "enqueueMapBuffer(*outputTensorCLBuffer,",
    f"{' ' * 40}&clStatus);": "&clStatus));",  # the cast around it is never closed
    "sizeof(bufferSize),": "bufferSize,",
    "mappedPtr + bufferSize);": "mappedPtr + bufferSize / sizeof(float));",
    "enqueueUnmapBuffer(*outputTensorBuffer,": "enqueueUnmapMemObject(*outputTensorCLBuffer,",
    "QnnMem_deregister(&tensors.memHandle, 1);": "QnnMem_deregister(memHandles, 1);",
    "if (QNN_SUCCESS != registRet)": "if (QNN_SUCCESS != result)",
}  # fmt: skip

LISTINGS = [
    Listing("delegate", "000", 65, 97, TFLITE),
    Listing("alignment", "001", 65, 83, ALIGNMENT, numbered=True),
    Listing("scratch_size", "001", 101, 112, PROPERTY.format("scratch")),
    Listing("scratch", "001", 117, 133, CONFIG.format("scratch")),
    Listing("persistent_size", "001", 150, 161, PROPERTY.format("persistent")),
    Listing("persistent", "001", 166, 182, CONFIG.format("persistent")),
    Listing(
        "io_described", "001", 197, 218,
        "QnnSystemContext_Handle_t qnnSystemCtxHandle; void *contextBinaryBuffer; uint64_t contextBinaryBufferSize;",
    ),
    Listing(
        "io_memory", "001", 223, 237,
        "const uint32_t numTensors = 2; int calculate_tensor_size(const Qnn_TensorV1_t &) { return 4; }\n"
        "void *allocate_aligned_memory(size_t, size_t, int) { return nullptr; }",
        {"size_t startAddrAlignment, sizeAlignment\n": "size_t startAddrAlignment = 0, sizeAlignment = 0;\n",
         "qnnTensor->v1": "tensor->v1"},
    ),
    Listing("opencl", "002", 42, 137, OPENCL, GPU_SLIPS, numbered=True),
    Listing(
        "qmem", "003", 16, 36, "",
        {"inputTensor.v1.clientBuf      = nullptr": "inputTensor.v1.memHandle = nullptr",  # as its comment says
         "outputTensor.v1.clientBuf     = nullptr": "outputTensor.v1.memHandle = nullptr",
         "opConfit": "opConfig"},
        numbered=True,
    ),
    Listing("older_scratch_size", "004", 12, 27, PROPERTY.format("scratch"), numbered=True),
    Listing("older_scratch", "004", 30, 51, CONFIG.format("scratch"), numbered=True),
    Listing("older_persistent_size", "004", 65, 80, PROPERTY.format("persistent"), numbered=True),
    Listing("older_persistent", "004", 83, 104, CONFIG.format("persistent"), numbered=True),
    Listing("older_alignment", "004", 113, 135, ALIGNMENT, numbered=True),
]  # fmt: skip
INCLUDES = """
#include <cstdlib>
#include <vector>

#include "QNN/GPU/QnnGpuMem.h"
#include "QNN/LPAI/QnnLpaiBackend.h"
#include "QNN/LPAI/QnnLpaiGraph.h"
#include "QNN/QnnInterface.h"
#include "QNN/QnnMem.h"
#include "QNN/QnnTypes.h"
#include "QNN/System/QnnSystemInterface.h"
"""


def cut(listing: Listing) -> str:
    """Cut a listing out of its document and put its slips right."""
    assert COPIES is not None
    (document,) = COPIES.glob(f"{listing.document}_*.txt")
    lines = document.read_text().splitlines()[listing.first - 1 : listing.last]
    if listing.numbered:
        lines = [re.sub(r"^\s*\d+", "", line) for line in lines]
    text = "\n".join(lines)
    for slip, remedy in listing.slips.items():
        assert slip in text, f"{listing.title}: there is no {slip!r}"
        text = text.replace(slip, remedy)
    return text


def test_the_listings_compile_and_find_their_functions(libraries: Path, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    program = INCLUDES
    for listing in LISTINGS:
        text = cut(listing)
        program += "".join(re.findall(r"^#include.*\n", text, re.MULTILINE))
        body = re.sub(r"^#include.*\n", "", text, flags=re.MULTILINE)
        program += f'#line 1 "{listing.title}"\n'
        program += f"namespace {listing.title} {{\n{listing.given}\nvoid run() {{\n{body}\n}}\n}}\n"
    source = tmp_path / "listings.cpp"
    source.write_text(program)
    command = [
        "g++", "-std=c++17", "-shared", "-fPIC", "-Wl,--no-undefined", "-w", f"-I{INCLUDE}", source, "-o",
        tmp_path / "listings.so", f"-L{libraries}", "-lQnnGpu", "-lQnnSystem", "-lQnnTFLiteDelegate",
    ]  # fmt: skip
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
