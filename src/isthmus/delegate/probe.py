"""A test of LiteRT's structures on a live interpreter with a fully known model, once per process.

A known version may still be built differently. Before a pointer is followed, the system is asked whether there is
memory at its target. Then every fact of the model must be found where the layout says. If one is not, all delegates are
refused, and the error says what was found.
"""

from __future__ import annotations

import ctypes
from typing import Any

from isthmus.delegate import library, parameters, probe_model, structures
from isthmus.delegate.structures import Allocation
from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite.schema import OPERATORS
from isthmus.memory import host
from isthmus.memory.identity import covering
from isthmus.system.lock import Lock

# What the trial's node returns as its user data, which must come back with later calls.
_MARK = 0x15_7A_4D_05
_lock = Lock()
# Why LiteRT is refused, once it was tried.
_verdict: QnnError | None = None
_tried = False


class _Doubt(Exception):
    """The error that a value is not where the layout says."""


def check() -> None:
    """Refuse a LiteRT whose structures differ from the known layout."""
    global _tried, _verdict
    with _lock:
        if not _tried:
            _verdict = _refusal()
            _tried = True
        if _verdict is not None:
            raise _verdict


def _refusal() -> QnnError | None:
    """Test the running LiteRT, and return why it is refused."""
    try:
        library.check_version(library.version())
    except QnnError as refusal:
        return refusal
    # A real mismatch occurs every time, an interrupt during a trial only once: so try twice.
    doubt = ProbeTrial().doubt and ProbeTrial().doubt
    if doubt is None:
        return None
    rule = f"its C structures are not as those of this version are known to be: {doubt}"
    hint = "A delegate would read memory at random; none is made."
    return QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, f"LiteRT {library.version()}", rule, hint)


class ProbeTrial:
    """One interpreter, examined from a delegate's side.

    - `doubt`: What differs from the known layout, or which call of the interpreter is still missing; None if all is as
      known.
    """

    def __init__(self) -> None:
        self.doubt: str | None = "a delegate was not asked to prepare"
        self._thunks = (
            structures.DelegatePrepare(self._guard(self._prepare, structures.OK)),
            structures.KernelInit(self._guard(self._init, _MARK)),
            structures.KernelFree(lambda context, data: None),
            structures.KernelCall(self._guard(self._kernel_prepare, structures.OK)),
        )
        for thunk in self._thunks:
            # A reference that is never dropped: the interpreter must never outlive these.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thunk))
        prepare, init, free, kernel_prepare = (ctypes.cast(thunk, ctypes.c_void_p).value for thunk in self._thunks)
        self._delegate = structures.Delegate(prepare=prepare, flags=structures.ALLOW_DYNAMIC_TENSORS)
        self._registration = structures.Registration(
            init=init, free=free, prepare=kernel_prepare, invoke=kernel_prepare, custom_name=b"probe", version=1
        )
        self._context = 0
        try:
            self._examine()
        except (RuntimeError, ValueError) as refusal:
            self.doubt = self.doubt or str(refusal)

    def _examine(self) -> None:
        """Create an interpreter with this delegate, and let it allocate its tensors."""
        module = library.module()
        interpreter: Any = module.Interpreter(
            model_content=probe_model.content(),
            experimental_op_resolver_type=module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            experimental_delegates=[self],
        )
        if self.doubt is None:
            self.doubt = "the delegate's node was not asked to prepare"
            interpreter.allocate_tensors()
        if self.doubt is None:
            self._guard(lambda: self._look_at_memory(interpreter), None)()

    def _get_native_delegate_pointer(self) -> int:
        """Return the address of TFLite's structure; LiteRT's Python calls this method by its name."""
        return ctypes.addressof(self._delegate)

    def _guard(self, check: Any, otherwise: Any) -> Any:
        """Return a function that records an exception as doubt and then returns `otherwise`: none may enter C."""

        def call_guarded(*arguments: Any) -> Any:
            try:
                return check(*arguments)
            except _Doubt as doubt:
                self.doubt = str(doubt)
            except Exception as problem:
                self.doubt = f"{type(problem).__name__}: {problem}"
            return otherwise

        return call_guarded

    # -- checks --------------------------------------------------------------------------------------------------------

    def _prepare(self, address: int, delegate: int) -> int:
        """Check the context, its tensors and nodes, and take over the second node (TfLiteDelegate.Prepare)."""
        _is(delegate, ctypes.addressof(self._delegate), "the delegate that prepares")
        context = _at(structures.Context, address, "a context")
        self._context = address
        _is(context.tensors_size, len(probe_model.TENSORS), "the number of tensors")
        self._look_at_tensors(context)
        self._look_at_nodes(context, address)
        subgraph = ctypes.c_void_p()
        _is(context.acquire_subgraph_context(address, 0, ctypes.byref(subgraph)), 0, "the way to a subgraph")
        _is(subgraph.value, address, "the context of subgraph 0")
        context.release_subgraph_context(address, 0)
        taken = structures.integer_array([1])
        self.doubt = None
        status: int = context.replace_node_subsets(address, self._registration, ctypes.addressof(taken), delegate)
        return status

    def _look_at_tensors(self, context: structures.Context) -> None:
        """Compare all tensors with the model; of tensor 2 also the contents, of tensor 6 the quantization."""
        first = ctypes.cast(context.tensors, ctypes.c_void_p).value
        _readable(first, len(probe_model.TENSORS) * ctypes.sizeof(structures.Tensor), "tensors")
        for index, (name, kind, dims) in enumerate(probe_model.TENSORS):
            tensor = context.tensors[index]
            what = f"tensor {index}"
            _is(tensor.type, kind, f"the type of {what}")
            _readable(tensor.dims, 4 + 4 * len(dims), f"the dimensions of {what}")
            _is(structures.integers(tensor.dims), dims, f"the dimensions of {what}")
            address = structures.Tensor.name.offset + ctypes.addressof(tensor)
            _readable(ctypes.c_void_p.from_address(address).value, len(name) + 1, f"the name of {what}")
            _is(tensor.name, name.encode(), f"the name of {what}")
            constant = index in probe_model.CONSTANTS
            _is(tensor.allocation_type == Allocation.MMAP_RO, constant, f"whether {what} is a constant")
            _is(bool(tensor.is_variable), False, f"whether {what} is a variable")
        bias = context.tensors[2]
        _is(bias.bytes, 12, "the bytes of tensor 2")
        _readable(bias.data, 12, "the contents of tensor 2")
        _is(tuple((ctypes.c_float * 3).from_address(bias.data)), probe_model.BIAS, "the contents of tensor 2")
        quantization = context.tensors[6].quantization
        _is(quantization.type, structures.AFFINE_QUANTIZATION, "the quantization of tensor 6")
        affine = _at(structures.AffineQuantization, quantization.params, "the quantization of tensor 6")
        _readable(affine.scale, 4 + 4 * len(probe_model.SCALES), "the scales of tensor 6")
        _is(tuple(structures.reals(affine.scale)), probe_model.SCALES, "the scales of tensor 6")

    def _look_at_nodes(self, context: structures.Context, address: int) -> None:
        """Compare the execution plan and all nodes with the model; of the convolution also the options."""
        plan = ctypes.c_void_p()
        _is(context.get_execution_plan(address, ctypes.byref(plan)), 0, "the way to the execution plan")
        _readable(plan.value, 4 + 4 * len(probe_model.NODES), "the execution plan")
        _is(structures.integers(plan.value), (0, 1), "the execution plan")
        for index, (code, inputs, outputs) in enumerate(probe_model.NODES):
            at, kind = ctypes.c_void_p(), ctypes.c_void_p()
            status = context.get_node_and_registration(address, index, ctypes.byref(at), ctypes.byref(kind))
            _is(status, 0, f"the way to node {index}")
            node = _at(structures.Node, at.value, f"node {index}")
            registration = _at(structures.Registration, kind.value, f"the registration of node {index}")
            _is(registration.builtin_code, OPERATORS.index(code), f"the operator of node {index}")
            _is(registration.version, 1, f"the version of node {index}")
            _readable(node.inputs, 4 + 4 * len(inputs), f"the inputs of node {index}")
            _readable(node.outputs, 4 + 4 * len(outputs), f"the outputs of node {index}")
            _is(structures.integers(node.inputs), inputs, f"the inputs of node {index}")
            _is(structures.integers(node.outputs), outputs, f"the outputs of node {index}")
            _readable(node.builtin_data, 24, f"the options of node {index}")
            if code == "CONV_2D":
                options = parameters.options(code, node.builtin_data)
                _is(options, probe_model.CONVOLUTION, f"the options of node {index}")

    def _init(self, context: int, buffer: int, length: int) -> int:
        """Check what the new node replaces (TfLiteRegistration.init)."""
        params = _at(structures.DelegateParams, buffer, "what a delegate's node replaces")
        _is(params.delegate, ctypes.addressof(self._delegate), "the delegate of a node")
        _readable(params.nodes_to_replace, 8, "the nodes that are replaced")
        _is(structures.integers(params.nodes_to_replace), (1,), "the nodes that are replaced")
        _is(sorted(structures.integers(params.input_tensors)), [3, 4], "the inputs of a delegate's node")
        _is(structures.integers(params.output_tensors), (probe_model.OUTPUT,), "the outputs of a delegate's node")
        return _MARK

    def _kernel_prepare(self, context: int, address: int) -> int:
        """Check that the new node has the user data that `_init` returned (TfLiteRegistration.prepare)."""
        node = _at(structures.Node, address, "a delegate's node")
        _is(node.user_data, _MARK, "what a delegate's node is known by")
        self.doubt = None
        return structures.OK

    def _look_at_memory(self, interpreter: Any) -> None:
        """Check that LiteRT accepts fitting memory for a tensor and refuses misaligned memory."""
        try:
            function = library.set_custom_allocation()
        except QnnError:
            # The error is reported when the function is actually needed.
            return
        tensor = structures.Context.from_address(self._context).tensors[probe_model.INPUT]
        with host(tensor.bytes + structures.DEFAULT_TENSOR_ALIGNMENT, structures.DEFAULT_TENSOR_ALIGNMENT) as buffer:
            handle = interpreter._native_handle()
            for offset, accepted in ((1, False), (0, True)):
                allocation = structures.CustomAllocation(buffer.address + offset, tensor.bytes)
                status = function(handle, probe_model.INPUT, ctypes.addressof(allocation), 0)
                _is(status == structures.OK, accepted, "what becomes of memory for a tensor")
            tensor = structures.Context.from_address(self._context).tensors[probe_model.INPUT]
            _is(tensor.data, buffer.address, "the memory of a tensor")
            _is(tensor.allocation_type, Allocation.CUSTOM, "who provides the memory of a tensor")
            # The interpreter must end before the buffer.
            del tensor


def _readable(address: int | None, nbytes: int, what: str) -> None:
    """Raise a doubt unless all bytes at an address can be read."""
    mappings = covering(address, nbytes) if address else []
    if not mappings or not all(mapping.readable for mapping in mappings):
        raise _Doubt(f"{what} would be at {address or 0:#x}, where there is no memory")


def _at(kind: Any, address: int | None, what: str) -> Any:
    """View the structure at an address, after checking that it can be read."""
    _readable(address, ctypes.sizeof(kind), what)
    return kind.from_address(address)


def _is(actual: object, expected: object, what: str) -> None:
    """Raise a doubt unless a value is as expected."""
    if actual != expected:
        raise _Doubt(f"{what} would be {actual!r}, and is {expected!r}")
