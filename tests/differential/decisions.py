"""What is decided about each difference of call sequences: the reason why ours stays as it is.

A sequence whose answers differ must match one of these patterns, or the comparison fails. Differences without a good
reason have been removed: the vendor's code is returned.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Decision:
    """Why a difference stays.

    Parameters
    ----------
    cases
        A pattern of names of sequences.
    """

    cases: str
    reason: str


ENDS = "The vendor's library ends the process here. Ours returns a code."
OTHER_KIND = (
    "The vendor's handles are small numbers that are counted for each kind, so a handle of one kind is taken for "
    "another. Ours are unique, and a handle of another kind is refused."
)
NOT_ON_X86 = "The vendor's x86 library does not offer this and returns 1000. Ours does it, or checks the arguments."
HIDES = "The vendor's library accepts this, at least until the graph is finalized. Ours refuses it where it happens."
NAMES_THE_CAUSE = "Both refuse, by other codes. Ours names the cause."
DECISIONS = (
    Decision(r".*: \w+( handle)? of another kind|context: free a backend's handle", OTHER_KIND),
    Decision(
        r"(memory|signal): .*|.*: asynchronous|binary: validate.*|"
        r"(contextCreateFromBinary(WithSignal|ListAsync)|contextValidateBinary|contextFinalize): .*|"
        r".*(unknown signal|signal that is unknown)|error: (verbose|free a verbose) message.*|"
        r"errorGetVerboseMessage: .*|"
        r"profile: most events",
        NOT_ON_X86,
    ),
    Decision(
        r"node: (unknown operation|unknown parameter|wrong shape|wrong type|no inputs|no outputs|"
        r"one input too many|an output that is written twice|empty name)",
        HIDES + " A node that the vendor's library takes and then cannot finalize is hard to find in a large graph.",
    ),
    Decision(
        r"tensor: (no quantization|scale 0|negative scale|scale that is not a number|an unknown encoding|"
        r"huge dimensions|a constant with too little data|unknown kind|an axis that is not there|too few scales|"
        r"empty name|version \d|"
        r"unknown memory type)",
        HIDES + " Such a tensor makes a library read past the end of the client's memory, or compute nonsense.",
    ),
    Decision(
        r"execution: (a small input|a small output|another rank|another data type|version 9|unknown memory type)",
        "The vendor's library ignores this, and reads or writes past the end of a small buffer. Ours refuses it.",
    ),
    Decision(
        r"context: unknown priority|option: unknown priority of a graph|graph: an unknown priority|"
        r"option: unknown precision|"
        r"profile: unknown level|profile: every level|graph: empty name|binary: graph that is enabled and not there",
        "The vendor's library accepts a number or a name without a meaning. Ours refuses it: slips are noticed.",
    ),
    Decision(
        r"backend: unknown platform option",
        "Ours has no platform options. It takes any and logs it.",
    ),
    Decision(
        r"binary: (of zeros|of one byte|truncated|half of it|with a wrong bit|with bytes after its end)",
        "Both refuse. The vendor's backend returns codes of its system library; ours the documented one, 5005.",
    ),
    Decision(
        r"graph: finalize twice|node: after finalize|binary: a restored graph is finalized|"
        r"graph: an output that no node writes|node: before the producer of its input|node: missing parameter|"
        r"validation: version 9|tensor: (undefined kind|null graph|a dynamic dimension)|binary: a buffer of no size|"
        r"graph: (in null|an unknown profile as config)|graphCreate: context that is null|"
        r"graphRetrieve: context that is null|tensorCreateGraphTensor: graph that is null|"
        r"tensorCreateContextTensor: .*|deviceGetPlatformInfo: log that is unknown|"
        r"contextGetProperty: argument 2 is null|"
        r"backendGetProperty: .*|contextSetConfig: context .*|graphSetConfig: graph .*",
        NAMES_THE_CAUSE,
    ),
    Decision(
        r"backendSetConfig: backend that is unknown|profileSetConfig: profile that is unknown|"
        r"graphGetProperty: graph that is unknown",
        "The vendor's library does not look at the handle if there is nothing to set or to read. Ours refuses it.",
    ),
    Decision(
        r"(context|graph): (set )?no config|(contextSetConfig|graphSetConfig): right arguments",
        "Ours takes a list of configs that is null as an empty one, as both do where objects are created.",
    ),
    Decision(
        r"device: free before its context",
        "The vendor's library frees the contexts with their device. Ours refuses to free a device that a context uses.",
    ),
    Decision(r"profile: freed with its backend", "A profile ends with its backend in ours, so that nothing is left."),
    Decision(
        r"binary: a graph is added to a restored context",
        "A context from a binary can be extended here. On a device, compose a new context instead.",
    ),
    Decision(r"tensor: rank 8", "Ours computes tensors of up to 8 dimensions."),
    Decision(
        r"tensor: APP_READWRITE", "States of a graph are tensors of this type in ours, as LPAI has them; HTP has none."
    ),
    Decision(
        r"graph(Prepare|Release)ExecutionEnvironment: .*",
        "The vendor's library refuses an empty list of environments. Ours has nothing to do for it.",
    ),
    Decision(r"tensorUpdateGraphTensors: .*", "Tensors that can be updated after finalize are not offered by ours."),
)
"""In order: the first that matches counts."""


NUMERIC_DECISIONS = (
    Decision(
        r"ElementWiseFloorDiv .*", "Only where the exact quotient is a whole number: HTP's result is then one off."
    ),
    Decision(
        r"Conv2d (ufixed16|a16w4|a16w8)|Conv3d a16w8|DepthWiseConv2d (ufixed16|a16w4|a16w8)|FullyConnected ufixed16|"
        r"Batchnorm ufixed16|TransposeConv2d (ufixed16|a16w4|a16w8)|TransposeConv3d a16w8|"
        r"(MatMul|ElementWiseDivide|ElementWiseSquaredDifference) [us]fixed16",
        "Compared with exact arithmetic, HTP's result is off by this much, ours by at most half a step.",
    ),
    Decision(
        r"Cast sfixed8",
        "HTP casts the real value of a signed tensor and the stored integer of an unsigned one. Ours casts the latter.",
    ),
    Decision(r"OneHot .*fixed\d+", "HTP stores the integers 1 and 0, ours the steps of the reals 1 and 0."),
    Decision(r"TopK .*", "The values are the same; equal ones come in another order, so their indices differ."),
    Decision(r"RmsNorm fp(32|16)", "HTP's result is that without the bias, ours that with it."),
    Decision(r"Softmax [us]fixed8", "HTP's steps are those of an output without an offset; this one has an offset."),
    Decision(r"Gather sfixed8", "Every element of HTP's result is 128 off the gathered one."),
    Decision(r"Gru .*", "The results of the first step are the same. HTP's later ones differ from process to process."),
    Decision(
        r"MultiClassNms fp32",
        "HTP repeats boxes whose scores are not the best, and writes bits of floats where the classes belong.",
    ),
)
"""Why a result is beyond the tolerance; the first that matches counts."""


def _reason(decisions: Sequence[Decision], name: str) -> str:
    """Return the reason of the first decision that matches."""
    return next((each.reason for each in decisions if re.fullmatch(each.cases, name)), "not examined")


def numeric_reason(name: str) -> str:
    """Return why a result differs by more than the tolerance."""
    return _reason(NUMERIC_DECISIONS, name)


OPTION_DECISIONS = (
    Decision(
        r"enable_htp_shared_memory_allocator=1",
        "It needs registered memory, which the x86 library does not offer. Ours does.",
    ),
    Decision(
        r"htp_reused_io_limit_mb=\d+",
        "The x86 library has no process domains and refuses the option (5010). Ours counts it with IO_MEM_ESTIMATION "
        "on a chip that is named.",
    ),
)
"""Why a provider's option has another outcome; the first that matches counts."""


def option_reason(name: str) -> str:
    """Return why an option of the provider has another outcome on ours."""
    return _reason(OPTION_DECISIONS, name)


FORM_DECISIONS = (
    Decision(
        r"(UnPack|StridedSlice|GatherNd) fp32: .* to \[1?\]",
        "The vendor's library validates rank 0 and cannot finalize it. It refuses [1], but computes it in a graph. "
        "Ours takes [1], as both do for reductions.",
    ),
    Decision(
        r"Prelu fp32: 2 slopes for 3 channels",
        "The vendor's library reads past the end of the slopes. Ours refuses too few.",
    ),
    Decision(
        r"StridedSlice .*: shrunk at -3:0:1",
        "The vendor's library takes another element for one that is not there. Ours refuses it.",
    ),
    Decision(
        r"\w+ a16w8: (weights as an input|bias of (scale 0|no scale))",
        "Compared with exact arithmetic, HTP's result is off by this much, ours by at most a step.",
    ),
    Decision(
        r"TransposeConv2d ufixed8: in groups, with scales by channel",
        "The vendor's library wants as many scales for the bias as for the weights. Ours also takes one per channel.",
    ),
    Decision(
        r"TransposeConv2d ufixed8: in groups, with scales of a group",
        "HTP computes half of the channels with the scales of others. Ours uses the scales of a group for each group.",
    ),
)
"""Why a form has another outcome; the first that matches counts."""


def form_reason(name: str, vendor: str, ours: str) -> str | None:
    """Return why a form has another outcome; None if that is not decided."""
    if vendor.startswith("ended") and ours == "refused":
        return ENDS
    return next((each.reason for each in FORM_DECISIONS if re.fullmatch(each.cases, name)), None)


def is_end(answer: Any) -> bool:
    """Return whether an answer says that the process ended."""
    return isinstance(answer, str) and answer.startswith("ended")


def reason(name: str, vendor: Any, ours: Any) -> str | None:
    """Return why a difference stays; None if that is not decided."""
    if is_end(ours):
        return None
    if is_end(vendor):
        return ENDS
    return next((each.reason for each in DECISIONS if re.fullmatch(each.cases, name)), None)
