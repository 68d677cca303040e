"""Command lines that the help of each command shows. A test runs them all, with files of these names."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "isthmus run model.onnx",
        "isthmus run model.onnx --backend htp --repeat 100 --audit",
        "isthmus run model.onnx --inputs in.npz --outputs out.npz --json",
        "isthmus run model.onnx --profile",
    ),
    "plan": (
        "isthmus plan model.onnx",
        "isthmus plan model.onnx --backend lpai --tcm 64KiB",
        "isthmus plan model.onnx --backend htp --set htp.vtcm_mb=2",
        "isthmus plan model.onnx --scratch-limit least --table",
    ),
    "fit": (
        "isthmus fit model.onnx --rounds 1",
        "isthmus fit model.onnx --budget 300KiB --rounds 1",
        "isthmus fit model.onnx --backend lpai --tcm 64KiB --rounds 1",
        "isthmus fit --contexts model.bin --context llm=2829MB,spill=64MB --soc SM8750",
    ),
    "split": (
        "isthmus split camera.tflite",
        "isthmus split camera.tflite --out smaller.tflite --live-limit 500KB --json",
    ),
    "device": (
        "isthmus device --chips",
        "isthmus device model.onnx --soc SM8750 --level 2",
        "isthmus device model.onnx --soc SM8650,SM8750 --json",
    ),
    "view": ("isthmus view view.html",),
    "pack": ("isthmus pack problem.csv", "isthmus pack problem.csv --capacity 1KiB --out solution.csv"),
    "inspect": ("isthmus inspect model.bin", "isthmus inspect net.dlc --json"),
    "context-binary-generator": (
        "qnn-context-binary-generator --model model.onnx --backend libQnnHtp.so",
        "qnn-context-binary-generator --dlc_path net.dlc --backend libQnnLpai.so --binary_file net",
    ),
    "net-run": (
        "qnn-net-run --model model.onnx --backend libQnnCpu.so --input_list list.txt",
        "qnn-net-run --retrieve_context model.bin --backend libQnnHtp.so --input_list list.txt --shared_buffer",
        "qnn-net-run --model model.onnx --backend libQnnCpu.so --input_list list.txt --debug",
    ),
    "throughput-net-run": ("qnn-throughput-net-run --config threads.json",),
    "context-binary-utility": (
        "qnn-context-binary-utility --context_binary model.bin",
        "qnn-context-binary-utility --context_binary model.bin --json_file model.json",
    ),
    "profile-viewer": (
        "qnn-profile-viewer --input_log profile.log",
        "qnn-profile-viewer --input_log profile.log --output profile.csv",
    ),
    "capi": ("isthmus capi install libraries", "isthmus capi install --sdk qnn-sdk", "isthmus capi include"),
    "warm": ("isthmus warm model.onnx", "isthmus warm model.onnx --backend cpu --backend htp"),
    "samples": ("isthmus samples models",),
    "sweep": (
        "isthmus sweep model.onnx --backend cpu,lpai",
        "isthmus sweep model.onnx --mode run --set threads=1,2 --csv sweep.csv",
        "isthmus sweep model.onnx --backend lpai --set tcm=64KiB,128KiB",
    ),
    "compare": (
        "isthmus compare model.onnx",
        "isthmus compare model.onnx --against fp16 --all",
        "isthmus compare camera_qdq.onnx --against camera.onnx",
        "isthmus compare model.onnx --backend htp --against cpu --json",
    ),
    "doctor": ("isthmus doctor", "isthmus doctor --json"),
    "tflite-benchmark": ("isthmus tflite-benchmark model.tflite --backend htp --rounds 10",),
    "completion": ("isthmus completion bash", "isthmus completion zsh", "isthmus completion fish"),
}
"""The examples of each command, the simplest first."""
