"""Which arguments of QNN's functions are handles, which calls make and free what, and what must not be null."""

from __future__ import annotations

HANDLES: dict[str, list[tuple[int, str, bool]]] = {
    "backendCreate": [(0, "log", True)],
    "backendSetConfig": [(0, "backend", False)],
    "backendGetSupportedOperations": [(0, "backend", False)],
    "backendValidateOpConfig": [(0, "backend", False)],
    "backendGetProperty": [(0, "backend", False)],
    "backendFree": [(0, "backend", False)],
    "contextCreate": [(0, "backend", False), (1, "device", True)],
    "contextSetConfig": [(0, "context", False)],
    "contextGetBinarySize": [(0, "context", False)],
    "contextGetBinary": [(0, "context", False)],
    "contextCreateFromBinary": [(0, "backend", False), (1, "device", True), (6, "profile", True)],
    "contextCreateFromBinaryWithSignal": [
        (0, "backend", False), (1, "device", True), (6, "profile", True), (7, "signal", True),
    ],
    "contextValidateBinary": [(0, "backend", False), (1, "device", True)],
    "contextGetProperty": [(0, "context", False)],
    "contextFinalize": [(0, "context", False), (1, "profile", True)],
    "contextFree": [(0, "context", False), (1, "profile", True)],
    "graphCreate": [(0, "context", False)],
    "graphSetConfig": [(0, "graph", False)],
    "graphAddNode": [(0, "graph", False)],
    "graphFinalize": [(0, "graph", False), (1, "profile", True), (2, "signal", True)],
    "graphRetrieve": [(0, "context", False)],
    "graphExecute": [(0, "graph", False), (5, "profile", True), (6, "signal", True)],
    "graphExecuteAsync": [(0, "graph", False), (5, "profile", True), (6, "signal", True)],
    "graphGetProperty": [(0, "graph", False)],
    "tensorCreateContextTensor": [(0, "context", False)],
    "tensorCreateGraphTensor": [(0, "graph", False)],
    "logSetLogLevel": [(0, "log", False)],
    "logFree": [(0, "log", False)],
    "profileCreate": [(0, "backend", False)],
    "profileSetConfig": [(0, "profile", False)],
    "profileGetEvents": [(0, "profile", False)],
    "profileFree": [(0, "profile", False)],
    "memRegister": [(0, "context", False)],
    "deviceGetPlatformInfo": [(0, "log", True)],
    "deviceCreate": [(0, "log", True)],
    "deviceSetConfig": [(0, "device", False)],
    "deviceGetInfo": [(0, "device", False)],
    "deviceFree": [(0, "device", False)],
    "signalCreate": [(0, "backend", False)],
    "signalSetConfig": [(0, "signal", False)],
    "signalTrigger": [(0, "signal", False)],
    "signalFree": [(0, "signal", False)],
}  # fmt: skip
"""By function: the place of an argument, what it is a handle of, and whether it may be null."""

CREATES: dict[str, list[tuple[int, str, int | None]]] = {
    "logCreate": [(2, "log", None)],
    "backendCreate": [(2, "backend", None)],
    "deviceCreate": [(2, "device", None)],
    "contextCreate": [(3, "context", 0)],
    "contextCreateFromBinary": [(5, "context", 0)],
    "contextCreateFromBinaryWithSignal": [(5, "context", 0)],
    "graphCreate": [(3, "graph", 0)],
    "graphRetrieve": [(2, "graph", 0)],
    "profileCreate": [(2, "profile", 0)],
    "signalCreate": [(2, "signal", 0)],
    "memRegister": [(3, "memory handle", 0)],
}
"""By function: the place of the argument that says where a handle is put, what it is of, and what its owner's is."""

FREES: dict[str, list[tuple[int, str]]] = {
    "logFree": [(0, "log")],
    "backendFree": [(0, "backend")],
    "deviceFree": [(0, "device")],
    "contextFree": [(0, "context")],
    "profileFree": [(0, "profile")],
    "signalFree": [(0, "signal")],
}

NEEDED: dict[str, tuple[int, ...]] = {
    "backendCreate": (2,),
    "backendGetApiVersion": (0,),
    "backendGetBuildId": (0,),
    "contextCreate": (3,),
    "contextGetBinarySize": (1,),
    "contextGetBinary": (1, 3),
    "contextCreateFromBinary": (3, 5),
    "graphCreate": (1, 3),
    "graphRetrieve": (1, 2),
    "tensorCreateGraphTensor": (1,),
    "logCreate": (2,),
    "profileCreate": (2,),
    "profileGetEvents": (1, 2),
    "profileGetEventData": (1,),
    "memRegister": (1, 3),
    "memDeRegister": (0,),
    "deviceCreate": (2,),
    "signalCreate": (2,),
}
"""By function: the places of arguments that must not be null."""
